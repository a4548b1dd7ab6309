"""Muse Glimmer: messages whose headers name a receiver: itself, the user, or a tool.

After the prompt's `<|start|>assistant` come ` to=NAME<|message|>TEXT<|eom|>` and, in the last one,
`<|eot|>`; what goes to a tool is a section of invocations.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from ftman.chat.formats.base import ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.flow import one_call
from ftman.chat.formats.invoke import InvokeTags
from ftman.chat.formats.reader import Reader, Steps
from ftman.chat.formats.run import Run

if TYPE_CHECKING:
    from ftman.chat.formats.grammar import Demand, GrammarParts

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|eom|>", "<|eot|>")
_SELF, _USER = f" to=self{_MESSAGE}", f" to=user{_MESSAGE}"
_TO_SELF = re.compile(r"\bto=self\b")
_CALLS = InvokeTags(("function_calls",), "atem:").syntax()


def _parse(run: Run, fmt: ChatFormat) -> Steps:
    reader = run.reader
    if run.thinking:
        yield from _thoughts(run)
    elif (yield from reader.peek()) not in ("", "<", " "):  # a message that goes on
        yield from _text(run, fmt)
    while (yield from reader.peek()):
        header = yield from _header(reader)
        run.events.pass_mark()
        if header is not None:
            yield from _thoughts(run) if _TO_SELF.search(header) else _text(run, fmt)


def _header(reader: Reader) -> Generator[None, None, str | None]:
    """The words before <|message|>; None when no message comes."""
    words: list[str] = []
    while True:
        mark = yield from reader.until((_START, _MESSAGE, *_ENDS), words.append)
        if mark == _MESSAGE:
            return "".join(words)
        if mark != _START:
            return None


def _thoughts(run: Run) -> Steps:
    run.thinking = True
    yield from run.reader.until((*_ENDS, _START), run.events.thinking)
    run.thinking = False
    run.events.end_thinking()


def _text(run: Run, fmt: ChatFormat) -> Steps:
    opens = _CALLS.opens if run.parses_calls else ()
    while True:
        mark = yield from run.reader.until((*opens, *_ENDS, _START), run.events.text)
        if mark not in opens:
            return
        yield from one_call(run, fmt, mark)


def _grammar(parts: GrammarParts, fmt: ChatFormat, demand: Demand) -> str:
    options = []
    if demand.answer is not None:
        options.append(f"{parts.literal(_USER)} {parts.answer(demand.answer)}")
    elif demand.calls == "may":
        options.append(f"{parts.literal(_USER)} /(.|\\n)*/")
    for tool in demand.tools if demand.calls != "none" else ():
        call = parts.calls(fmt, replace(demand, tools=(tool,), several=False))
        options.append(f"{parts.literal(f' to={tool.name}{_MESSAGE}')} {call}")
    thoughts = f"{parts.literal(_SELF)} {parts.until(_ENDS[0])} {parts.literal(_START)} "
    return f'({thoughts} "assistant")* ({" | ".join(options)})'


FORMAT = ChatFormat(
    name="muse",
    reasoning=Marks(_SELF, _ENDS[0]),
    calls=_CALLS,
    visible=(_START, _MESSAGE, *_ENDS),
    switch=ThinkSwitch(
        flags=(),
        effort="reasoning_strength",
        levels={"minimal": "low", "max": "xhigh"},
        on="high",
        off="low",
        never_off=True,
    ),
    signs=(("atem:function_calls",),),
    parse=_parse,
    grammar=_grammar,
    ends=_ENDS,
)
