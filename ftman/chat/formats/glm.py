"""GLM 4.5 to 5: the name, then pairs of key and value tags."""

from __future__ import annotations

from ftman.chat.formats.arguments import ArgumentsWriter, raw_value, types_of
from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks
from ftman.chat.formats.calls_json import call_object
from ftman.chat.formats.calls_xml import one_or_more, parameters_grammar
from ftman.chat.formats.reader import CutCallError, Steps
from ftman.chat.formats.run import Run

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _END_KEY = "<arg_key>", "</arg_key>"
_VALUE, _END_VALUE = "<arg_value>", "</arg_value>"


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    yield from reader.space()
    if (yield from reader.peek()) == "{":
        yield from call_object(run)
        yield from reader.space()
        yield from reader.closing(_CLOSE)
    else:
        yield from _tags(run)
    yield from reader.space()


def _tags(run: Run) -> Steps:
    reader = run.reader
    name: list[str] = []
    mark = yield from reader.until(("\n", _KEY, _CLOSE), name.append)
    if not mark:
        raise CutCallError
    call = run.call("".join(name).strip())
    schema = run.schemas.get(call.name, {})
    writer = ArgumentsWriter(call)
    while mark != _CLOSE:
        if mark != _KEY:
            yield from reader.space()
            mark = yield from reader.choose(_KEY, _CLOSE)
            continue
        key = (yield from reader.collect(_END_KEY, limit=256)).strip()
        writer.key(key)
        yield from reader.space()
        yield from reader.expect(_VALUE)
        yield from raw_value(reader, writer, types_of(schema, key), (_END_VALUE,))
        mark = _END_VALUE
    writer.complete()


def _grammar(wanted: CallGrammar) -> str:
    def layout(name: str) -> tuple[str, str]:
        return f"\n{_KEY}{name}{_END_KEY}\n{_VALUE}", _END_VALUE

    calls = [
        f"{wanted.literal(_OPEN + tool.name)} "
        f"{parameters_grammar(wanted, tool.parameters, layout)} "
        f"{wanted.literal(chr(10) + _CLOSE)}"
        for tool in wanted.tools
    ]
    return one_or_more(wanted, calls, "\n")


FORMAT = ChatFormat(
    name="glm",
    reasoning=Marks("<think>", "</think>"),
    calls=CallSyntax(opens=(_OPEN,), parse=_parse, closes=(_CLOSE,), grammar=_grammar),
    visible=("<think>", "</think>", _OPEN, _CLOSE, _KEY, _END_KEY, _VALUE, _END_VALUE),
    signs=((_KEY, _VALUE),),
)
