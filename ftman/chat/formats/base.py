"""What a chat format declares. The formats are the files beside this one, listed in registry.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run, new_call_id
from ftman.chat.types import Tool


@dataclass(frozen=True)
class Marks:
    """The texts around a piece of the reply."""

    start: str
    end: str


@dataclass(frozen=True)
class CallSyntax:
    """How calls are written.

    opens: texts that begin a call. parse: reads one, the opening text being read already.
    closes: where to go on after a broken one. grammar: the body of a Lark rule that matches one
    or more calls of the given tools; None = a call cannot be forced.
    """

    opens: tuple[str, ...]
    parse: Callable[[Run, str], Steps]
    closes: tuple[str, ...] = ()
    grammar: Callable[[CallGrammar], str] | None = None
    bare: tuple[str, ...] = ()
    """What calls without any mark begin with; they are calls only where the reply begins so."""


@dataclass(frozen=True)
class CallGrammar:
    """What a call grammar may use. literal: the expression of a text, special tokens included;
    json: that of a schema. until: any text up to and over a mark. several: whether more than one
    call may follow."""

    tools: Sequence[Tool]
    several: bool
    literal: Callable[[str], str]
    json: Callable[[Mapping[str, Any]], str]
    until: Callable[[str], str]


@dataclass(frozen=True)
class ThinkSwitch:
    """How a template is told whether and how much to reason.

    flags: variables that are true or false. effort: a variable that takes a level; levels: what
    each level is called there (unknown levels pass). on, off: the efforts that think true and
    false stand for, "" when the flags say it. never_off: `off` is only the least effort.
    """

    flags: tuple[str, ...] = ("enable_thinking",)
    effort: str = "reasoning_effort"
    levels: Mapping[str, str] = field(default_factory=dict)
    on: str = ""
    off: str = ""
    never_off: bool = False


@dataclass(frozen=True)
class ChatFormat:
    """One way of writing reasoning and calls.

    visible: special tokens whose text the parser must see. signs: a template is of this format
    when it holds all texts of one group. wraps: texts around an answer that are no part of it.
    lead: those of them that begin it: a constrained answer may stand behind them.
    parse: reads a whole reply, None = flow.marked.
    call_id: makes ids; own_id: whether a client's id may be shown to the template as it is;
    written_id: what stands in its place otherwise, from the call's number in the conversation.
    ends: texts that end a turn in a prompt, besides those of the model's stop tokens.
    """

    name: str
    reasoning: Marks | None = None
    calls: CallSyntax | None = None
    visible: tuple[str, ...] = ()
    switch: ThinkSwitch = ThinkSwitch()
    signs: tuple[tuple[str, ...], ...] = ()
    wraps: tuple[str, ...] = ()
    lead: str = ""
    parse: Callable[[Run, ChatFormat], Steps] | None = None
    grammar: Callable[..., str] | None = None
    call_id: Callable[[], str] = new_call_id
    own_id: Callable[[str], bool] | None = None
    written_id: Callable[[int, str], str] | None = None
    ends: tuple[str, ...] = ()

    @property
    def has_calls(self) -> bool:
        """Whether tools can be called."""
        return self.calls is not None or self.parse is not None
