"""LFM2: a list of calls in Python's notation between marks, or of JSON objects if asked for."""

from __future__ import annotations

from functools import partial

from ftman.chat.formats.base import CallSyntax, ChatFormat, Marks
from ftman.chat.formats.calls_json import call_list
from ftman.chat.formats.pythonic import python_calls, python_grammar
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    yield from reader.space()
    yield from reader.expect("[")
    yield from reader.space()
    if (yield from reader.peek()) == "{":
        yield from call_list(run)
    else:
        yield from python_calls(run)
    yield from reader.space()
    yield from reader.closing(_CLOSE)
    yield from reader.space()


FORMAT = ChatFormat(
    name="lfm2",
    reasoning=Marks("<think>", "</think>"),
    calls=CallSyntax(
        opens=(_OPEN,),
        parse=_parse,
        closes=(_CLOSE,),
        grammar=partial(python_grammar, _OPEN, _CLOSE),
    ),
    visible=("<think>", "</think>", _OPEN, _CLOSE),
    signs=((_OPEN,), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
)
