"""Granite 3: a JSON list behind a mark; Granite 4 writes Hermes marks."""

from __future__ import annotations

from ftman.chat.formats.base import CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_json import listed_calls, listed_grammar
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_MARK, _OPEN, _CLOSE = "<|tool_call|>", "<tool_call>", "</tool_call>"


def _parse(run: Run, mark: str) -> Steps:
    yield from listed_calls(run, _CLOSE)


FORMAT = ChatFormat(
    name="granite",
    reasoning=Marks("<think>", "</think>"),
    calls=CallSyntax(
        opens=(_MARK, _OPEN),
        parse=_parse,
        grammar=listed_grammar(f"{_MARK}[", ", ", "]"),
    ),
    visible=("<think>", "</think>", _MARK, _OPEN, _CLOSE),
    switch=ThinkSwitch(flags=("thinking",)),
    signs=((_MARK,),),
)
