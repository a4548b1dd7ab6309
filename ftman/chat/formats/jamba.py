"""Jamba: a JSON list of calls between marks; also read: objects below each other (MiniMax-M1)."""

from __future__ import annotations

from ftman.chat.formats.base import CallSyntax, ChatFormat, Marks
from ftman.chat.formats.calls_json import call_list, call_object, listed_grammar
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_OPEN, _CLOSE = "<tool_calls>", "</tool_calls>"


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    yield from reader.space()
    if (yield from reader.literal("[")):
        yield from call_list(run)
    else:
        yield from call_object(run)
        yield from reader.space()
        while (yield from reader.peek()) == "{":
            run.begin_call("")
            yield from call_object(run)
            yield from reader.space()
    yield from reader.space()
    yield from reader.closing(_CLOSE)
    yield from reader.space()


CALLS = CallSyntax(
    opens=(_OPEN,),
    parse=_parse,
    closes=(_CLOSE,),
    grammar=listed_grammar(f"{_OPEN}[", ", ", f"]{_CLOSE}"),
)
FORMAT = ChatFormat(
    name="jamba",
    reasoning=Marks("<think>", "</think>"),
    calls=CALLS,
    visible=("<think>", "</think>", _OPEN, _CLOSE),
    signs=((_OPEN,),),
)
