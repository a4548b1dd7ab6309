"""GLM 4.5 to 5: the name, then pairs of key and value tags."""

from __future__ import annotations

from ftman.chat.formats.arg_tags import ArgTags
from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks
from ftman.chat.formats.calls_json import call_object
from ftman.chat.formats.calls_xml import one_or_more, parameters_grammar
from ftman.chat.formats.reader import CutCallError, Steps
from ftman.chat.formats.run import Run

_TAGS = ArgTags()
_OPEN, _CLOSE = _TAGS.start("tool_call"), _TAGS.end("tool_call")


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
    mark = yield from reader.until(("\n", _TAGS.key, _CLOSE), name.append)
    if not mark:
        raise CutCallError
    call = run.call("".join(name).strip())
    yield from _TAGS.arguments(run, call, mark, _CLOSE)


def _grammar(wanted: CallGrammar) -> str:
    calls = [
        f"{wanted.literal(_OPEN + tool.name)} "
        f"{parameters_grammar(wanted, tool.parameters, _TAGS.layout)} "
        f"{wanted.literal(chr(10) + _CLOSE)}"
        for tool in wanted.tools
    ]
    return one_or_more(wanted, calls, "\n")


FORMAT = ChatFormat(
    name="glm",
    reasoning=Marks("<think>", "</think>"),
    calls=CallSyntax(opens=(_OPEN,), parse=_parse, closes=(_CLOSE,), grammar=_grammar),
    visible=("<think>", "</think>", _OPEN, _CLOSE, *_TAGS.visible),
    signs=((_TAGS.key, _TAGS.start("arg_value")),),
)
