"""Llama 4: a reply that is a list of calls in Python's notation, or a JSON object; or in marks."""

from __future__ import annotations

from functools import partial

from ftman.chat.formats.base import CallSyntax, ChatFormat
from ftman.chat.formats.calls_json import call_object
from ftman.chat.formats.pythonic import python_calls, python_grammar
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_OPEN, _CLOSE = "<|python_start|>", "<|python_end|>"
_BARE = ("[", "{")


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    opening = mark
    if mark == _OPEN:
        yield from reader.space()
        opening = yield from reader.choose(*_BARE)
    if opening == "[":
        yield from python_calls(run, known=mark == "[")
    else:
        yield from call_object(run, opened=True, needs_arguments=True)
    yield from reader.space()
    yield from reader.one_of((_CLOSE, ";"))
    yield from reader.space()


FORMAT = ChatFormat(
    name="llama4",
    calls=CallSyntax(
        opens=(_OPEN,),
        parse=_parse,
        closes=(_CLOSE,),
        grammar=partial(python_grammar, "", ""),
        bare=_BARE,
    ),
    visible=(_OPEN, _CLOSE),
    signs=((_OPEN,), ("<|header_start|>", "tools")),
)
