"""Llama 3: a bare JSON object that begins the reply, or one behind <|python_tag|>."""

from __future__ import annotations

from ftman.chat.formats.arguments import name_until
from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat
from ftman.chat.formats.calls_json import arguments, call_object
from ftman.chat.formats.calls_xml import one_or_more
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_TAG = "<|python_tag|>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    if mark == _FUNCTION:
        call = run.call((yield from name_until(reader, ">")))
        yield from reader.space()
        yield from arguments(run, call)
        yield from reader.space()
        yield from reader.closing(_END_FUNCTION)
    else:
        yield from reader.space()
        yield from call_object(run, opened=mark == "{", needs_arguments=True)
        yield from reader.space()
        yield from reader.literal(";")
    yield from reader.space()


def _grammar(wanted: CallGrammar) -> str:
    calls = [
        f"""{wanted.literal('{"name": "' + tool.name + '", "parameters": ')} """
        f"{wanted.json(tool.parameters)} {wanted.literal('}')}"
        for tool in wanted.tools
    ]
    return one_or_more(wanted, calls, "; ")


FORMAT = ChatFormat(
    name="llama3",
    calls=CallSyntax(
        opens=(_TAG, _FUNCTION),
        parse=_parse,
        closes=(_END_FUNCTION,),
        grammar=_grammar,
        bare=("{",),
    ),
    visible=(_TAG,),
    signs=((_TAG,), ('"parameters"', "<|start_header_id|>", "tools")),
)
