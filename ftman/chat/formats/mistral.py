"""Mistral: [TOOL_CALLS] before a JSON list, or before a name and [ARGS]; ids have 9 characters."""

from __future__ import annotations

import re
import secrets
import string

from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_json import arguments, call_list
from ftman.chat.formats.calls_xml import one_or_more
from ftman.chat.formats.reader import CutCallError, Steps
from ftman.chat.formats.run import Run

_OPEN, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_OWN_ID = re.compile(r"[A-Za-z0-9]{9}")


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    yield from reader.space()
    if (yield from reader.literal("[")):
        yield from call_list(run)
    else:
        yield from _named(run)
    yield from reader.space()


def _named(run: Run) -> Steps:
    reader = run.reader
    name: list[str] = []
    mark = yield from reader.until((_ARGS, _ID), name.append)
    if not mark:
        raise CutCallError
    call_id = ""
    if mark == _ID:
        call_id = (yield from reader.collect(_ARGS, limit=64)).strip()
    yield from reader.space()
    if (yield from reader.peek()) not in ("", "{"):
        yield from reader.expect("{")
    yield from arguments(run, run.call("".join(name).strip(), call_id))


def _grammar(wanted: CallGrammar) -> str:
    calls = [
        f"{wanted.literal(_OPEN + tool.name + _ARGS)} {wanted.json(tool.parameters)}"
        for tool in wanted.tools
    ]
    return one_or_more(wanted, calls, "")


def _new_id() -> str:
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


FORMAT = ChatFormat(
    name="mistral",
    reasoning=Marks("[THINK]", "[/THINK]"),
    calls=CallSyntax(opens=(_OPEN,), parse=_parse, grammar=_grammar),
    visible=("[THINK]", "[/THINK]", _OPEN, _ARGS, _ID),
    switch=ThinkSwitch(flags=(), on="high", off="none"),
    signs=((_OPEN,),),
    call_id=_new_id,
    own_id=lambda call_id: _OWN_ID.fullmatch(call_id) is not None,
    written_id=lambda number, name: f"call{number:05d}",
)
