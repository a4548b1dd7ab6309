"""Qwen3-Coder: a tag for the function and one for each parameter; also Qwen 3.5 and 3.6."""

from __future__ import annotations

from ftman.chat.formats.arguments import ArgumentsWriter, name_until, raw_value, types_of
from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks
from ftman.chat.formats.calls_json import call_object
from ftman.chat.formats.calls_xml import one_or_more, parameters_grammar
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    if mark == _OPEN:
        yield from reader.space()
        if (yield from reader.peek()) == "{":  # what other Qwen models would write
            yield from call_object(run)
            yield from _end(run)
            return
        yield from reader.expect(_FUNCTION)
    call = run.call((yield from name_until(reader, ">")))
    schema = run.schemas.get(call.name, {})
    writer = ArgumentsWriter(call)
    while True:
        yield from reader.space()
        if (yield from reader.choose(_PARAMETER, _END_FUNCTION)) == _END_FUNCTION:
            break
        name = yield from name_until(reader, ">")
        writer.key(name)
        yield from reader.literal("\n")
        marks = (f"\n{_END_PARAMETER}", _END_PARAMETER)
        yield from raw_value(reader, writer, types_of(schema, name), marks)
    writer.complete()
    yield from _end(run)


def _end(run: Run) -> Steps:
    yield from run.reader.space()
    yield from run.reader.closing(_CLOSE)
    yield from run.reader.space()


def _grammar(wanted: CallGrammar) -> str:
    def layout(name: str) -> tuple[str, str]:
        return f"{_PARAMETER}{name}>\n", f"\n{_END_PARAMETER}\n"

    calls = [
        f"{wanted.literal(f'{_OPEN}{chr(10)}{_FUNCTION}{tool.name}>{chr(10)}')} "
        f"{parameters_grammar(wanted, tool.parameters, layout)} "
        f"{wanted.literal(f'{_END_FUNCTION}{chr(10)}{_CLOSE}')}"
        for tool in wanted.tools
    ]
    return one_or_more(wanted, calls, "\n")


FORMAT = ChatFormat(
    name="qwen3_coder",
    reasoning=Marks("<think>", "</think>"),
    calls=CallSyntax(opens=(_OPEN, _FUNCTION), parse=_parse, closes=(_CLOSE,), grammar=_grammar),
    visible=("<think>", "</think>", _OPEN, _CLOSE),
    signs=((_FUNCTION, _PARAMETER),),
)
