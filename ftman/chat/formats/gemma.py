"""Gemma 4 (and FunctionGemma): calls in a notation of their own, strings between marks."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial

from ftman.chat.formats.arguments import ArgumentsWriter, typed_text
from ftman.chat.formats.base import CallSyntax, ChatFormat, Marks
from ftman.chat.formats.gemma_grammar import gemma_grammar
from ftman.chat.formats.json_stream import DEPTH_LIMIT
from ftman.chat.formats.reader import BrokenCallError, CutCallError, Reader, Steps
from ftman.chat.formats.run import Run

_OPEN, _CLOSE = "<|tool_call>", "<tool_call|>"
_OLD_OPEN, _OLD_CLOSE = "<start_function_call>", "<end_function_call>"
_QUOTES = ('<|"|>', "<escape>", '"')
_ENDS = (",", "}", "]")
_ANY = frozenset(["object"])


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    yield from reader.space()
    yield from reader.expect("call:")
    call = run.call((yield from reader.collect("{", limit=256)).strip())
    writer = ArgumentsWriter(call)
    yield from _members(reader, writer, 0)
    writer.complete()
    yield from reader.space()
    yield from reader.closing(_CLOSE if mark == _OPEN else _OLD_CLOSE)
    yield from reader.space()


def _members(reader: Reader, writer: ArgumentsWriter, depth: int) -> Steps:
    """The pairs of an object up to and over its bracket, which the writer still has to close."""
    while True:
        yield from reader.space()
        if (yield from reader.one_of(("}", ","))) == "}":
            return
        yield from reader.space()
        quote = yield from reader.one_of(_QUOTES)
        if quote:
            key = yield from reader.collect(quote, limit=256)
            yield from reader.expect(":")
        else:
            key = (yield from reader.collect(":", limit=256)).strip()
        if not key:
            raise BrokenCallError("an argument in it has no name")
        writer.key(key)
        yield from _value(reader, writer, depth)


def _items(reader: Reader, writer: ArgumentsWriter, depth: int) -> Steps:
    while True:
        yield from reader.space()
        if (yield from reader.one_of(("]", ","))) == "]":
            return
        yield from _value(reader, writer, depth)


def _value(reader: Reader, writer: ArgumentsWriter, depth: int) -> Steps:
    if depth > DEPTH_LIMIT:
        raise BrokenCallError(f"it nests deeper than {DEPTH_LIMIT} levels")
    yield from reader.space()
    quote = yield from reader.one_of(_QUOTES)
    if quote:
        if not (yield from reader.until((quote,), writer.string)):
            raise CutCallError
        writer.end_string()
        return
    bracket = yield from reader.one_of(("{", "["))
    if bracket:
        writer.open(bracket)
        inner = _members if bracket == "{" else _items
        yield from inner(reader, writer, depth + 1)
        writer.close()
        return
    writer.scalar(typed_text((yield from _word(reader)), _ANY))


def _word(reader: Reader) -> Generator[None, None, str]:
    """A number, true, false or null: what stands before a comma or bracket, which stays."""
    chars = []
    while (yield from reader.peek()) not in _ENDS:
        chars.append((yield from reader.next()))
        if len(chars) > 1000:
            raise BrokenCallError("a number in it is too long")
    word = "".join(chars).strip()
    if not word:
        raise BrokenCallError("an argument in it has no value")
    return word


FORMAT = ChatFormat(
    name="gemma",
    reasoning=Marks("<|channel>thought\n", "<channel|>"),
    calls=CallSyntax(
        opens=(_OPEN, _OLD_OPEN),
        parse=_parse,
        closes=(_CLOSE, _OLD_CLOSE),
        grammar=partial(gemma_grammar, _OPEN, _CLOSE),

    ),
    visible=(
        "<|channel>", "<channel|>", _OPEN, _CLOSE, _OLD_OPEN, _OLD_CLOSE, '<|"|>', "<escape>",
    ),
    signs=((_OPEN, "call:"), (_OLD_OPEN,), ("<|channel>", "<channel|>")),
)  # fmt: skip
