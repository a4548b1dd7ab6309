"""Calls as a JSON object that holds a name and arguments; shared by several formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from ftman.chat.formats.base import CallGrammar
from ftman.chat.formats.json_stream import JsonStream
from ftman.chat.formats.reader import BrokenCallError, CutCallError, Reader, Steps
from ftman.chat.formats.run import CallWriter, Run

_NAME_KEYS = ("name", "tool_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_ID_KEYS = ("id", "tool_call_id")


@dataclass
class _Found:
    """What of a call object was read so far. own_id: whether the id in it counts."""

    own_id: bool = True
    name: str = ""
    call_id: str = ""
    held: str = ""
    call: CallWriter | None = None


def call_object(
    run: Run, *, opened: bool = False, needs_arguments: bool = False, own_id: bool = True
) -> Steps:
    """Read {"name": ..., "arguments": {...}}, in any order of keys, also under "function"; the
    arguments stream if the name came before them. opened: its bracket was read. needs_arguments:
    an object without them is no call. own_id: an id in it is that of the call.

    Raises: BrokenCallError."""
    found = _Found(own_id)
    if not opened:
        yield from run.reader.expect("{")
    yield from _members(run, found)
    if found.call is None:
        if needs_arguments and not found.held:
            raise BrokenCallError("it has no arguments")
        found.call = run.call(found.name, found.call_id)
        found.call.write(found.held, "")
    if not found.call.done:
        found.call.complete()


def call_list(run: Run, *, own_ids: bool = True) -> Steps:
    """Read a JSON list of call objects, its bracket being read already."""
    reader = run.reader
    first = True
    while True:
        yield from reader.space()
        if (yield from reader.one_of(("]", ","))) == "]":
            return
        yield from reader.space()
        if not (yield from reader.peek()):
            return
        if not first:  # a first one that is broken is shown with the mark before it
            run.begin_call("")
        yield from call_object(run, own_id=own_ids)
        first = False


def listed_calls(run: Run, close: str, *, own_ids: bool = True) -> Steps:
    """Read a list of call objects, or one alone, up to and over `close` where that follows."""
    reader = run.reader
    yield from reader.space()
    if (yield from reader.literal("[")):
        yield from call_list(run, own_ids=own_ids)
    else:
        yield from call_object(run, own_id=own_ids)
    yield from reader.space()
    yield from reader.closing(close)
    yield from reader.space()


def arguments(run: Run, call: CallWriter) -> Steps:
    """Read a JSON object as the arguments of an announced call and complete it.

    A text that holds JSON, or null, is taken too.   Raises: BrokenCallError.
    """
    char = yield from run.reader.peek()
    if char == "{":
        yield from _streamed(run.reader, call.write)
    else:
        call.write(_unpacked((yield from json_value(run.reader))), "")
    call.complete()


def json_value(reader: Reader) -> Generator[None, None, str]:
    """Read one JSON value; returns its text.   Raises: BrokenCallError."""
    parts: list[str] = []
    yield from _streamed(reader, lambda text, closing: parts.append(text))
    return "".join(parts)


def listed_grammar(opening: str, join: str, closing: str) -> Any:
    """Grammar of calls as JSON objects {"name", "arguments"} with texts around and between."""

    def grammar(wanted: CallGrammar) -> str:
        calls = []
        for tool in wanted.tools:
            head = '{"name": ' + json.dumps(tool.name) + ', "arguments": '
            body = wanted.json(tool.parameters)
            calls.append(f"{wanted.literal(head)} {body} {wanted.literal('}')}")
        one = "(" + " | ".join(calls) + ")"
        more = f" ({wanted.literal(join)} {one})*" if wanted.several else ""
        return f"{wanted.literal(opening)} {one}{more} {wanted.literal(closing)}"

    return grammar


def _members(run: Run, found: _Found) -> Steps:
    reader = run.reader
    while True:
        yield from reader.space()
        char = yield from reader.next()
        if char == "}":
            return
        if char == ",":
            continue
        if char != '"':
            raise BrokenCallError(f"{char!r} is not JSON here")
        key = yield from _key(reader)
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        yield from _member(run, found, key)


def _member(run: Run, found: _Found, key: str) -> Steps:
    reader = run.reader
    if key in _ARGUMENT_KEYS:
        if found.name:
            found.call = run.call(found.name, found.call_id)
            yield from arguments(run, found.call)
        else:
            found.held = _unpacked((yield from json_value(reader)))
    elif key == "function" and (yield from reader.literal("{")):
        yield from _members(run, found)
    else:
        value = json.loads((yield from json_value(reader)))
        if key in (*_NAME_KEYS, "function") and isinstance(value, str):
            found.name = value
        elif key in _ID_KEYS and isinstance(value, str) and found.own_id:
            found.call_id = value


def _key(reader: Reader) -> Generator[None, None, str]:
    text = ['"']
    while True:
        char = yield from reader.next()
        text.append(char)
        if char == "\\":
            text.append((yield from reader.next()))
        elif char == '"':
            break
    try:
        return str(json.loads("".join(text)))
    except ValueError:
        raise BrokenCallError("a key in it is not JSON") from None


def _streamed(reader: Reader, write: Callable[[str, str], None]) -> Steps:
    """Read one JSON value; `write` gets each settled piece and what would close it then."""
    stream = JsonStream()
    while not stream.done:
        if reader.buffer:
            try:
                text = stream.feed(reader.buffer)
            except BrokenCallError:
                # what was good before the bad character goes out, so that cuts do not change it
                text = stream.settled()
                raise
            finally:
                reader.take(stream.used)
                write(text, stream.closing)
        elif reader.ended:
            write(stream.end(), stream.closing)
            if not stream.done:
                raise CutCallError
        else:
            yield


def _unpacked(text: str) -> str:
    """The JSON object inside a JSON text; null is no arguments.   Raises: BrokenCallError."""
    value = json.loads(text)
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError):
            raise BrokenCallError("its arguments are not JSON") from None
        text = json.dumps(value, ensure_ascii=False)
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise BrokenCallError("its arguments are no object")
    return text
