"""One Go template as Ollama's Modelfiles use it: parsed once, rendered often, asked what it needs.

The interpreter is the package gotext; how a conversation becomes its values is go_chat.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ftman.chat.gotext.evaluate import evaluate
from ftman.chat.gotext.functions import Builtins, names
from ftman.chat.gotext.nodes import (
    Action,
    Branch,
    Cut,
    Node,
    Text,
    names_of,
    operands,
    pipe_names,
)
from ftman.chat.gotext.parser import Parsed, parse
from ftman.clock import SYSTEM, Clock

_RESPONSE = "{{ .Response }}"


class GoTemplate:
    """A parsed template. Rendering is pure but for the date functions, which ask `clock`."""

    def __init__(self, parsed: Parsed, *, clock: Clock = SYSTEM):
        self._parsed = parsed
        self._clock = clock
        self._names = {name for nodes in self._all_nodes() for item in operands(nodes)
                       for name in names_of(item)}  # fmt: skip

    @classmethod
    def parse(cls, text: str, *, clock: Clock = SYSTEM) -> GoTemplate:
        """Parse; a template that shows no messages and no reply gets the reply at its end.

        Raises: UsageError "template error: line N: ...".
        """
        known = names()
        template = cls(parse(text, known), clock=clock)
        if not template.mentions(".Messages") and not template.mentions(".Response"):
            template = cls(parse(text + _RESPONSE, known), clock=clock)
        return template

    def mentions(self, name: str) -> bool:
        """Whether a field of this name (".Tools") occurs anywhere."""
        return name.removeprefix(".") in self._names

    def render(self, values: Mapping[str, Any]) -> str:
        """Render; parts that come from traced values are traced in the result.

        Raises: UsageError "template error: line N: ...".
        """
        return evaluate(self._parsed, values, self._functions())

    def render_open(self, values: Mapping[str, Any]) -> str:
        """Render up to and including the first `.Response`: a turn that is to be continued."""
        cut = Parsed(Cut("Response").nodes(self._parsed.root), self._parsed.defined)
        return evaluate(cut, values, self._functions())

    def thinking_tags(self) -> tuple[str, str] | None:
        """The texts around `.Thinking` inside a range over `.Messages`, None without them."""
        for nodes in self._all_nodes():
            for branch in _branches(nodes):
                if branch.kind == "range" and "Messages" in pipe_names(branch.pipe):
                    tags = _tags(branch.body)
                    if tags is not None:
                        return tags
        return None

    def _functions(self) -> Mapping[str, Any]:
        return Builtins(datetime.fromtimestamp(self._clock.wall())).table()

    def _all_nodes(self) -> list[tuple[Node, ...]]:
        return [self._parsed.root, *self._parsed.defined.values()]


def _branches(nodes: tuple[Node, ...]) -> Iterator[Branch]:
    for node in nodes:
        if isinstance(node, Branch):
            yield node
            yield from _branches(node.body)
            yield from _branches(node.orelse)


def _tags(block: tuple[Node, ...]) -> tuple[str, str] | None:
    """Of the block nearest to `.Thinking`: its first and last text."""
    for node in block:
        if isinstance(node, Branch):
            found = _tags(node.body) or _tags(node.orelse)
            if found is not None:
                return found
        elif isinstance(node, Action) and "Thinking" in pipe_names(node.pipe):
            first, last = block[0], block[-1]
            if isinstance(first, Text) and isinstance(last, Text):
                tags = first.text.strip(), last.text.strip()
                return tags if all(tags) else None
    return None
