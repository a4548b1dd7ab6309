"""Hy3: a section of calls as tags; all of them, and those of reasoning, have an ending."""

from __future__ import annotations

from ftman.chat.formats.arg_tags import ArgTags
from ftman.chat.formats.arguments import name_until
from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_xml import one_or_more, parameters_grammar
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_TAGS = ArgTags(":opensource")
_OPEN, _CLOSE = _TAGS.start("tool_calls"), _TAGS.end("tool_calls")
_CALL, _END_CALL, _SEPARATOR = (
    _TAGS.start("tool_call"),
    _TAGS.end("tool_call"),
    _TAGS.start("tool_sep"),
)
_THINK = Marks(_TAGS.start("think"), _TAGS.end("think"))


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    while True:
        yield from reader.space()
        if (yield from reader.choose(_CALL, _CLOSE)) == _CLOSE:
            break
        call = run.call((yield from name_until(reader, _SEPARATOR)))
        yield from _TAGS.arguments(run, call, "", _END_CALL)
        yield from reader.space()
        if not (yield from reader.peek()):
            break
        run.begin_call("")
    yield from reader.space()


def _grammar(wanted: CallGrammar) -> str:
    calls = [
        f"{wanted.literal(_CALL + tool.name + _SEPARATOR)} "
        f"{parameters_grammar(wanted, tool.parameters, _TAGS.layout)} "
        f"{wanted.literal(chr(10) + _END_CALL + chr(10))}"
        for tool in wanted.tools
    ]
    opening = wanted.literal(f"{_OPEN}\n")
    return f"{opening} {one_or_more(wanted, calls, '')} {wanted.literal(_CLOSE)}"


FORMAT = ChatFormat(
    name="hy3",
    reasoning=_THINK,
    calls=CallSyntax(opens=(_OPEN,), parse=_parse, closes=(_CLOSE,), grammar=_grammar),
    visible=(
        *(_THINK.start, _THINK.end, _OPEN, _CLOSE, _CALL, _END_CALL, _SEPARATOR),
        *_TAGS.visible,
    ),
    switch=ThinkSwitch(
        flags=(),
        levels={"minimal": "low", "none": "no_think", "medium": "high", "max": "high"},
        on="high",
        off="no_think",
    ),
    signs=((_SEPARATOR,), ("<tool_sep{}>",)),
)
