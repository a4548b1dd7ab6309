"""One Lark grammar for a whole reply: reasoning left free, then the answer or calls as demanded.

The dialect is llguidance's: <[7]> is token 7, %json holds a schema. Control tokens are never part
of text in it, so free text up to one needs no care; up to other text it is matched lazily. Only
text is composed here: nothing is compiled, and the engine judges it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ftman.chat.formats.base import CallGrammar, ChatFormat
from ftman.chat.formats.closed import closed, closed_constraint
from ftman.chat.types import Constraint, Tool

_LAYOUT = {
    "lenient": True,
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""Arguments are laid out as models were trained to; keywords that llguidance does not know loosen
the grammar rather than refuse the tool."""

_ANYTHING = r"/(.|\n)*/"
_ANY_OBJECT = '{"type": "object"}'
_LARK_PIECES = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*|\bstart\b')


@dataclass(frozen=True)
class Demand:
    """What a reply must be.

    thinking: "inside" = the prompt opened reasoning, "may" = the reply may. calls: whether tools
    are called; "may" binds only the arguments. several: whether more than one call may follow.
    """

    answer: Constraint | None = None
    calls: Literal["none", "may", "must"] = "none"
    tools: Sequence[Tool] = ()
    several: bool = True
    thinking: Literal["none", "may", "inside"] = "none"


@dataclass
class GrammarParts:
    """Builds the rules of one grammar. control: id of each control token, by its text."""

    control: Mapping[str, int]
    rules: list[str] = field(default_factory=list)

    def literal(self, text: str) -> str:
        """The expression of a text, control tokens in it being tokens."""
        if not text:
            return ""
        known = [token for token in self.control if token in text]
        if not known:
            return json.dumps(text, ensure_ascii=False)
        pattern = "|".join(re.escape(token) for token in sorted(known, key=len, reverse=True))
        parts = re.split(f"({pattern})", text)
        return " ".join(
            f"<[{self.control[part]}]>" if part in self.control else json.dumps(part)
            for part in parts
            if part
        )

    def until(self, mark: str) -> str:
        """Any text up to and over `mark`."""
        if any(mark.startswith(token) for token in self.control):
            return f"{_ANYTHING} {self.literal(mark)}"
        escaped = r"\n".join(re.escape(line).replace("/", r"\/") for line in mark.split("\n"))
        return self.rule(f"/(.|\\n)*{escaped}/", "[lazy]")

    def rule(self, body: str, flags: str = "") -> str:
        """A rule of its own; returns its name."""
        name = f"part_{len(self.rules)}"
        self.rules.append(f"{name}{flags}: {body}")
        return name

    def arguments(self, schema: Mapping[str, Any]) -> str:
        """The expression of a tool's arguments, or of one of them."""
        kept = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
        return "%json " + json.dumps({**closed(kept), "x-guidance": _LAYOUT})

    def answer(self, constraint: Constraint) -> str:
        """The expression of a constrained answer."""
        if constraint.kind == "lark":
            self.rules.append(_renamed(constraint.text))
            return "answer_start"
        if constraint.kind == "regex":
            return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", constraint.text) + "/"
        return "%json " + (constraint.text if constraint.kind == "json_schema" else _ANY_OBJECT)

    def calls(self, fmt: ChatFormat, demand: Demand) -> str:
        """The expression of one or more calls; "" where the format has no grammar of them."""
        if fmt.calls is None or fmt.calls.grammar is None:
            return ""
        wanted = CallGrammar(demand.tools, demand.several, self.literal, self.arguments, self.until)
        return fmt.calls.grammar(wanted)

    def text(self, start: str) -> str:
        """The whole grammar."""
        return "\n".join([f"start: {start}", *self.rules, "GAP: /[ \\t\\r\\n]+/", ""])


def compose(fmt: ChatFormat, demand: Demand, control: Mapping[str, int]) -> Constraint | None:
    """The constraint of a whole reply; None when this format has no way to express it."""
    demand = replace(demand, answer=closed_constraint(demand.answer))
    if demand.calls == "none" and demand.thinking == "none" and fmt.grammar is None:
        return demand.answer
    parts = GrammarParts(control)
    if fmt.grammar is not None:
        start = fmt.grammar(parts, fmt, demand)
    else:
        start = _start(parts, fmt, demand)
    return Constraint("lark", parts.text(start)) if start else None


def _start(parts: GrammarParts, fmt: ChatFormat, demand: Demand) -> str:
    body = parts.answer(demand.answer) if demand.answer is not None else ""
    if body and fmt.lead:
        body = f"({parts.literal(fmt.lead)} GAP?)? {body}"
    if demand.calls != "none":
        calls = parts.calls(fmt, demand)
        if not calls:
            return ""
        if demand.calls == "must":
            body = calls
        elif body:
            body = f"({body} | {parts.rule(calls)})"
        elif calls.startswith("<["):
            body = f"{_ANYTHING} ({calls})?"
        else:
            return ""  # where the call begins cannot be told from the text before it
    if fmt.reasoning is None or demand.thinking == "none":
        return body
    thoughts = f"{parts.until(fmt.reasoning.end)} GAP?"
    if demand.thinking == "may":
        opening = parts.literal(fmt.reasoning.start)
        thoughts = f"({opening} {thoughts})?"
    return f"{thoughts} {body}"


def _renamed(lark: str) -> str:
    """A user's grammar as a part of ours: its `start` gets another name."""

    def change(found: re.Match[str]) -> str:
        return "answer_start" if found.group() == "start" else found.group()

    return _LARK_PIECES.sub(change, lark)
