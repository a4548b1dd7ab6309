"""Hermes: JSON objects in <tool_call> marks; Qwen 2.5 and 3, and many others."""

from __future__ import annotations

from ftman.chat.formats.base import CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_json import call_object, listed_grammar
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


def _parse(run: Run, mark: str) -> Steps:
    yield from run.reader.space()
    yield from call_object(run)
    yield from run.reader.space()
    yield from run.reader.closing(_CLOSE)
    yield from run.reader.space()


FORMAT = ChatFormat(
    name="hermes",
    reasoning=Marks("<think>", "</think>"),
    calls=CallSyntax(
        opens=(_OPEN,),
        parse=_parse,
        closes=(_CLOSE,),
        grammar=listed_grammar(f"{_OPEN}\n", f"\n{_CLOSE}\n{_OPEN}\n", f"\n{_CLOSE}"),
    ),
    visible=("<think>", "</think>", _OPEN, _CLOSE),
    switch=ThinkSwitch(),
    signs=((_OPEN,),),
)
