"""Harmony (gpt-oss): messages with headers; channels tell reasoning, calls and the answer apart.

After the prompt's `<|start|>assistant` come `<|channel|>NAME<|message|>TEXT<|end|>`; a call's
header names its receiver: `commentary to=functions.NAME <|constrain|>json`.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING

from ftman.chat.formats.base import ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_json import arguments
from ftman.chat.formats.reader import BrokenCallError, Reader, Steps
from ftman.chat.formats.run import Run

if TYPE_CHECKING:
    from ftman.chat.formats.grammar import Demand, GrammarParts

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN = "<|constrain|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_HEADER_MARKS = (_CHANNEL, _CONSTRAIN, _START)
_TO = re.compile(r"\bto=(\S+)")


def _parse(run: Run, fmt: ChatFormat) -> Steps:
    reader = run.reader
    first = yield from reader.peek()
    if run.thinking:
        yield from _body(run, "analysis")
    elif first and first not in "< ":  # the prompt ended inside a message, which goes on
        yield from _body(run, "final")
    while (yield from reader.peek()):
        yield from _message(run, (yield from _header(reader)))
        run.events.pass_mark()


def _header(reader: Reader) -> Generator[None, None, str]:
    """The words before <|message|>; "" when no message comes."""
    words: list[str] = []
    while True:
        mark = yield from reader.until((*_HEADER_MARKS, _MESSAGE, *_ENDS), words.append)
        if mark == _MESSAGE:
            return "".join(words) or "final"
        if not mark or mark in _ENDS:
            return ""
        words.append(" ")


def _message(run: Run, header: str) -> Steps:
    if not header:
        return
    to = _TO.search(header)
    if to is not None and run.parses_calls:
        yield from _call(run, to.group(1).removeprefix("functions."))
    else:
        yield from _body(run, "analysis" if "analysis" in header.split() else "final")


def _body(run: Run, channel: str) -> Steps:
    events, reader = run.events, run.reader
    run.thinking = channel == "analysis"
    emit = events.thinking if run.thinking else events.text
    yield from reader.until((*_ENDS, _START), emit)
    run.thinking = False
    events.end_thinking()


def _call(run: Run, name: str) -> Steps:
    reader = run.reader
    run.begin_call("")
    try:
        yield from reader.space()
        if (yield from reader.peek()) not in ("", "{"):
            raise BrokenCallError("its arguments are no object")
        yield from arguments(run, run.call(name))
    except BrokenCallError as error:
        run.give_up(error)
    reader.recorded()
    yield from reader.until((*_ENDS, _START), _ignore)


def _ignore(text: str) -> None:
    """What stands around messages."""


def _grammar(parts: GrammarParts, fmt: ChatFormat, demand: Demand) -> str:
    def message(channel: str) -> str:
        return parts.literal(f"{_CHANNEL}{channel}{_MESSAGE}")

    options = []
    if demand.answer is not None:
        options.append(f"{message('final')} {parts.answer(demand.answer)}")
    elif demand.calls == "may":
        options.append(f"{message('final')} /(.|\\n)*/")
    for tool in demand.tools if demand.calls != "none" else ():
        head = parts.literal(
            f"{_CHANNEL}commentary to=functions.{tool.name} {_CONSTRAIN}json{_MESSAGE}"
        )
        options.append(f"{head} {parts.arguments(tool.parameters)}")
    thoughts = f"{message('analysis')} {parts.until('<|end|>')} {parts.literal(_START)} "
    return f'({thoughts} "assistant")* ({" | ".join(options)})'


FORMAT = ChatFormat(
    name="harmony",
    reasoning=Marks(f"{_CHANNEL}analysis{_MESSAGE}", "<|end|>"),
    visible=(*_HEADER_MARKS, _MESSAGE, *_ENDS),
    switch=ThinkSwitch(
        flags=(),
        levels={"minimal": "low", "none": "low", "xhigh": "high", "max": "high"},
        on="medium",
        off="low",
        never_off=True,
    ),
    signs=((_CHANNEL, _MESSAGE), ("<|start|>", "<|end|>", "analysis")),
    parse=_parse,
    grammar=_grammar,
    ends=_ENDS,
)
