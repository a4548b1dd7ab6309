"""Calls in Python's notation, `name(key=value, ...)` in a list; shared by LFM2 and Llama 4."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from typing import Any

from ftman.chat.formats.arguments import ArgumentsWriter, typed_text
from ftman.chat.formats.base import CallGrammar
from ftman.chat.formats.calls_xml import members, one_or_more
from ftman.chat.formats.json_stream import DEPTH_LIMIT
from ftman.chat.formats.reader import BrokenCallError, CutCallError, Reader, Steps
from ftman.chat.formats.run import Run

_QUOTES = ('"', "'")
_BRACKETS = {"{": "}", "[": "]", "(": ")"}
_ENDS = (",", ")", "]", "}")
_ANY = frozenset(["object"])
_NAME_LIMIT = 256
_WORD_LIMIT = 1000
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}
_WORD = re.compile(r"[\w.+-]+")


def python_calls(run: Run, *, known: bool = False) -> Steps:
    """Read a list of calls, its bracket being read already. known: what is no tool is no call.

    Raises: BrokenCallError.
    """
    reader = run.reader
    first = True
    while True:
        yield from reader.space()
        mark = yield from reader.one_of(("]", ","))
        if mark == "]" and not first:
            return
        yield from reader.space()
        if not first:
            if not (yield from reader.peek()):
                return
            run.begin_call("")
        yield from _call(run, known)
        first = False


def _call(run: Run, known: bool) -> Steps:
    reader = run.reader
    name = yield from _name(reader, ".-")
    yield from reader.expect("(")
    if known and name not in run.schemas:
        raise BrokenCallError(f"{name!r} is no tool")
    yield from reader.space()
    if (yield from reader.literal(")")):
        run.call(name).complete()
        return
    key = yield from _key(reader)
    writer = ArgumentsWriter(run.call(name))
    while True:
        writer.key(key)
        yield from _value(reader, writer, 0)
        yield from reader.space()
        if (yield from reader.choose(")", ",")) == ")":
            break
        yield from reader.space()
        if (yield from reader.literal(")")):
            break
        key = yield from _key(reader)
    writer.complete()


def _key(reader: Reader) -> Generator[None, None, str]:
    key = yield from _name(reader, "")
    yield from reader.space()
    yield from reader.expect("=")
    return key


def _name(reader: Reader, more: str) -> Generator[None, None, str]:
    """A name of letters, digits, _ and `more`; what stands behind it stays."""
    chars: list[str] = []
    while True:
        char = yield from reader.peek()
        if not (char.isalnum() or char in ("_", *more)) or not char:
            break
        chars.append(reader.take(1))
        if len(chars) > _NAME_LIMIT:
            raise BrokenCallError(f"a name in it is longer than {_NAME_LIMIT} characters")
    if not chars:
        raise BrokenCallError("a name is missing in it") if char else CutCallError()
    return "".join(chars)


def _value(reader: Reader, writer: ArgumentsWriter, depth: int) -> Steps:
    if depth > DEPTH_LIMIT:
        raise BrokenCallError(f"it nests deeper than {DEPTH_LIMIT} levels")
    yield from reader.space()
    quote = yield from reader.one_of(_QUOTES)
    if quote:
        yield from _string(reader, writer, quote)
        return
    bracket = yield from reader.one_of(tuple(_BRACKETS))
    if not bracket:
        writer.scalar(typed_text((yield from _word(reader)), _ANY))
        return
    writer.open("{" if bracket == "{" else "[")
    yield from _items(reader, writer, bracket, depth)
    writer.close()


def _items(reader: Reader, writer: ArgumentsWriter, bracket: str, depth: int) -> Steps:
    """What stands in brackets, up to and over the closing one."""
    end = _BRACKETS[bracket]
    while True:
        yield from reader.space()
        if (yield from reader.one_of((end, ","))) == end:
            return
        yield from reader.space()
        if (yield from reader.peek()) == end:
            continue
        if bracket == "{":
            quote = yield from reader.choose(*_QUOTES)
            writer.key((yield from reader.collect(quote, limit=_NAME_LIMIT)))
            yield from reader.space()
            yield from reader.expect(":")
        yield from _value(reader, writer, depth + 1)


def _string(reader: Reader, writer: ArgumentsWriter, quote: str) -> Steps:
    """A string up to and over its quote, of which there may be three.

    Templates write strings as they are, and so do models: a quote ends one only where a string may
    end.
    """
    if (yield from reader.literal(quote)):
        if not (yield from reader.literal(quote)):
            writer.end_string()
            return
        quote *= 3
    while True:
        mark = yield from reader.until((quote, "\\"), writer.string)
        if not mark:
            raise CutCallError
        if mark == "\\":
            writer.string((yield from _escaped(reader)))
            continue
        space = yield from reader.space()
        if (yield from reader.peek()) in ("", ":", *_ENDS):
            break
        writer.string(quote + space)
    writer.end_string()


def _escaped(reader: Reader) -> Generator[None, None, str]:
    """What a backslash and the characters behind it stand for."""
    char = yield from reader.next()
    if char not in _CODES:
        return _ESCAPES.get(char, char if char in "\\'\"/" else "\\" + char)
    code = yield from _code(reader, _CODES[char])
    if 0xD800 <= code < 0xDC00 and (yield from reader.literal("\\u")):
        low = yield from _code(reader, 4)
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    if not 0 <= code < 0x110000 or 0xD800 <= code < 0xE000:
        return "\ufffd"
    return chr(code)


def _code(reader: Reader, count: int) -> Generator[None, None, int]:
    digits = ""
    for _ in range(count):
        digits += yield from reader.next()
    try:
        return int(digits, 16)
    except ValueError:
        raise BrokenCallError(f"{digits!r} is no character's number") from None


def _word(reader: Reader) -> Generator[None, None, str]:
    """A number, True, False or None: what stands before a comma or bracket, which stays."""
    chars: list[str] = []
    while (char := (yield from reader.peek())) not in _ENDS:
        if not char:
            raise CutCallError
        chars.append(reader.take(1))
        if len(chars) > _WORD_LIMIT:
            raise BrokenCallError(f"a value in it is longer than {_WORD_LIMIT} characters")
    word = "".join(chars).strip()
    if not _WORD.fullmatch(word):
        raise BrokenCallError(f"{word[:20]!r} is no value")
    return word


def python_grammar(opening: str, closing: str, wanted: CallGrammar) -> str:
    """A list of calls of the wanted tools between two texts."""
    calls = [
        f'{wanted.literal(tool.name + "(")} {_arguments(wanted, tool.parameters)} ")"'
        for tool in wanted.tools
    ]
    body = one_or_more(wanted, calls, ", ")
    return f"{wanted.literal(opening + '[')} {body} {wanted.literal(']' + closing)}"


def _arguments(wanted: CallGrammar, schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    required = schema.get("required") or ()
    needed: list[str] = []
    others: list[str] = []
    for name, value in properties.items() if isinstance(properties, Mapping) else ():
        kind = value.get("type") if isinstance(value, Mapping) else None
        inner = {**value, **{k: schema[k] for k in ("$defs", "definitions") if k in schema}}
        body = '("True" | "False")' if kind == "boolean" else wanted.json(inner)
        pair = f"{wanted.literal(name + '=')} {body}"
        (needed if name in required else others).append(pair)
    return members(needed, others, wanted.literal(", "))
