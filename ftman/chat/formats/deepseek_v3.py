"""DeepSeek V3, V3.1 and R1: name and JSON between tool marks; older ones fence the JSON."""

from __future__ import annotations

from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_json import arguments
from ftman.chat.formats.calls_xml import one_or_more
from ftman.chat.formats.reader import Steps
from ftman.chat.formats.run import Run

_BAR, _LOW = "\uff5c", "\u2581"


def _mark(*words: str) -> str:
    return f"<{_BAR}{_LOW.join(words)}{_BAR}>"


_OPEN, _CLOSE = _mark("tool", "calls", "begin"), _mark("tool", "calls", "end")
_CALL, _END_CALL = _mark("tool", "call", "begin"), _mark("tool", "call", "end")
_SEP = _mark("tool", "sep")
_FENCE = "```"


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    opened = mark == _CALL
    while True:
        if not opened:
            yield from reader.space()
            if (yield from reader.choose(_CALL, _CLOSE)) == _CLOSE:
                break
        yield from _one(run)
        yield from reader.space()
        if not (yield from reader.peek()):
            break
        run.begin_call("")
        opened = False
    yield from reader.space()


def _one(run: Run) -> Steps:
    reader = run.reader
    name = (yield from reader.collect(_SEP, limit=256)).strip()
    fenced = name == "function"
    if fenced:
        name = (yield from reader.collect("\n", limit=256)).strip()
        yield from reader.expect(f"{_FENCE}json")
    yield from reader.space()
    if (yield from reader.peek()) not in ("", "{"):
        yield from reader.expect("{")
    yield from arguments(run, run.call(name))
    yield from reader.space()
    if fenced:
        yield from reader.closing(_FENCE)
    yield from reader.closing(_END_CALL)


def _grammar(wanted: CallGrammar) -> str:
    calls = [
        f"{wanted.literal(_CALL + tool.name + _SEP)} {wanted.json(tool.parameters)} "
        f"{wanted.literal(_END_CALL)}"
        for tool in wanted.tools
    ]
    return f"{wanted.literal(_OPEN)} {one_or_more(wanted, calls, '')} {wanted.literal(_CLOSE)}"


FORMAT = ChatFormat(
    name="deepseek_v3",
    reasoning=Marks("<think>", "</think>"),
    calls=CallSyntax(opens=(_OPEN, _CALL), parse=_parse, closes=(_CLOSE,), grammar=_grammar),
    visible=("<think>", "</think>", _OPEN, _CLOSE, _CALL, _END_CALL, _SEP),
    switch=ThinkSwitch(flags=("thinking", "enable_thinking")),
    signs=((_CALL, _SEP),),
)
