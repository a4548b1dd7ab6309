"""Solar Open: each part of a reply in a message of its own; calls with ids of their own."""

from __future__ import annotations

from ftman.chat.formats.arguments import name_until
from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_json import arguments
from ftman.chat.formats.calls_xml import one_or_more
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_BEGIN, _END = "<|begin|>assistant", "<|end|>"
_CALLS, _END_CALLS = "<|tool_calls|>", "<|calls|>"
_CALL, _NAME, _ARGUMENTS, _END_CALL = (
    "<|tool_call:begin|>",
    "<|tool_call:name|>",
    "<|tool_call:args|>",
    "<|tool_call:end|>",
)
_THINK, _CONTENT = "<|think|>", "<|content|>"


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    call_id = yield from name_until(reader, _NAME)
    name = yield from name_until(reader, _ARGUMENTS)
    yield from reader.space()
    if (yield from reader.peek()) not in ("", "{"):
        yield from reader.expect("{")
    yield from arguments(run, run.call(name, call_id))
    yield from reader.space()
    yield from reader.closing(_END_CALL)


def _grammar(wanted: CallGrammar) -> str:
    calls = [
        f"{wanted.literal(_CALL)} /[A-Za-z0-9_-]+/ {wanted.literal(_NAME + tool.name + _ARGUMENTS)}"
        f" {wanted.json(tool.parameters)} {wanted.literal(_END_CALL)}"
        for tool in wanted.tools
    ]
    opening = f"({wanted.literal(_BEGIN)})? {wanted.literal(_CALLS)}"
    return f"{opening} {one_or_more(wanted, calls, '')} {wanted.literal(_END_CALLS)}"


FORMAT = ChatFormat(
    name="solar",
    reasoning=Marks(_THINK, _END),
    calls=CallSyntax(opens=(_CALL,), parse=_parse, closes=(_END_CALL,), grammar=_grammar),
    visible=(
        *("<|begin|>", _END, _THINK, _CONTENT, _CALLS, _END_CALLS),
        *(_CALL, _NAME, _ARGUMENTS, _END_CALL),
    ),
    switch=ThinkSwitch(
        flags=(), levels={"none": "minimal"}, on="high", off="minimal", never_off=True
    ),
    signs=((_CALL, _ARGUMENTS),),
    wraps=(_BEGIN, _CONTENT, _CALLS, _END_CALLS, _END),
    lead=_BEGIN + _CONTENT,
)
