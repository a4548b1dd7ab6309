"""Kimi K2 and K2.5: calls with ids of their own, `functions.NAME:IDX`, that results must repeat."""

from __future__ import annotations

import re

from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_json import arguments
from ftman.chat.formats.calls_xml import one_or_more
from ftman.chat.formats.reader import BrokenCallError, Steps
from ftman.chat.formats.run import Run

_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _END_CALL = (
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_ID = re.compile(r"(?:functions\.)?([^\s:]+)(?::(\d+))?")


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    while True:
        yield from reader.space()
        if (yield from reader.choose(_CALL, _CLOSE)) == _CLOSE:
            break
        call_id = (yield from reader.collect(_ARGUMENTS, limit=256)).strip()
        found = _ID.fullmatch(call_id)
        if found is None:
            raise BrokenCallError(f"its id {call_id[:40]!r} holds no name")
        yield from reader.space()
        if (yield from reader.peek()) not in ("", "{"):
            yield from reader.expect("{")
        own = call_id if found.group(2) is not None else ""
        yield from arguments(run, run.call(found.group(1), own))
        yield from reader.space()
        yield from reader.closing(_END_CALL)
        if not (yield from reader.peek()):
            break
        run.begin_call("")
    yield from reader.space()


def _grammar(wanted: CallGrammar) -> str:
    calls = [
        f"{wanted.literal(f'{_CALL}functions.{tool.name}:')} /[0-9]+/ {wanted.literal(_ARGUMENTS)} "
        f"{wanted.json(tool.parameters)} {wanted.literal(_END_CALL)}"
        for tool in wanted.tools
    ]
    return f"{wanted.literal(_OPEN)} {one_or_more(wanted, calls, '')} {wanted.literal(_CLOSE)}"


def _own(call_id: str) -> bool:
    return call_id.startswith("functions.") and _ID.fullmatch(call_id) is not None


FORMAT = ChatFormat(
    name="kimi",
    reasoning=Marks("<think>", "</think>"),
    calls=CallSyntax(opens=(_OPEN,), parse=_parse, closes=(_CLOSE,), grammar=_grammar),
    visible=("<think>", "</think>", _OPEN, _CLOSE, _CALL, _ARGUMENTS, _END_CALL),
    switch=ThinkSwitch(flags=("thinking", "enable_thinking")),
    signs=((_CALL, _ARGUMENTS),),
    own_id=_own,
    written_id=lambda number, name: f"functions.{name}:{number}",
)
