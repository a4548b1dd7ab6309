"""MiniMax M3: invocations whose arguments are tags named like them, in any depth.

A token of its own stands before each tag, so that no text of an argument can end it. Objects hold
a tag for each key, lists one called `item` for each entry.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ftman.chat.formats.arguments import (
    ArgumentsWriter,
    alternatives,
    item_of,
    property_of,
    typed_text,
    types_in,
)
from ftman.chat.formats.base import CallGrammar, CallSyntax, ChatFormat, Marks, ThinkSwitch
from ftman.chat.formats.calls_xml import one_or_more, value_grammar
from ftman.chat.formats.reader import BrokenCallError, CutCallError, Reader, Steps
from ftman.chat.formats.run import Run

_MARK = "]<]minimax[>["
_OPEN, _CLOSE = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"
_THINK = Marks("<mm:think>", "</mm:think>")
_NAME = re.compile(r'invoke\s+name\s*=\s*"([^"]*)"\s*')
_DEPTH_LIMIT = 16
_EMPTY = {"array": "[]", "object": "{}", "null": "null"}


@dataclass(frozen=True)
class _Known:
    """What the tool's schema says of the value that is read. root: where references lead."""

    schema: Any
    root: Mapping[str, Any]
    depth: int = 0

    @property
    def types(self) -> frozenset[str]:
        return types_in(self.schema, self.root)

    @property
    def says(self) -> Mapping[str, Any]:
        return next(alternatives(self.schema, self.root), {})

    def inner(self, name: str, *, is_item: bool = False) -> _Known:
        if self.depth >= _DEPTH_LIMIT:
            raise BrokenCallError(f"its arguments are nested more than {_DEPTH_LIMIT} deep")
        found = item_of(self.schema, self.root) if is_item else None
        if not is_item:
            found = property_of(self.schema, self.root, name)
        return replace(self, schema=found, depth=self.depth + 1)


def _parse(run: Run, mark: str) -> Steps:
    reader = run.reader
    while (tag := (yield from _tag(reader))) != "/tool_call":
        found = _NAME.fullmatch(tag)
        if found is None:
            raise BrokenCallError(f"{tag[:20]!r} stands where an invocation may")
        call = run.call(found.group(1))
        writer = ArgumentsWriter(call)
        schema = run.schemas.get(call.name, {})
        while (tag := (yield from _tag(reader))) != "/invoke":
            yield from _member(reader, writer, _Known(schema, schema), tag)
        writer.complete()
        yield from reader.space()
        if not (yield from reader.peek()):
            break
        run.begin_call("")
    yield from reader.space()


def _tag(reader: Reader) -> Generator[None, None, str]:
    """What stands in the tag that follows."""
    yield from reader.space()
    yield from reader.expect(f"{_MARK}<")
    return (yield from reader.collect(">", limit=400))


def _member(reader: Reader, writer: ArgumentsWriter, known: _Known, name: str) -> Steps:
    """A key, whose tag was read, and its value."""
    writer.key(name)
    yield from _value(reader, writer, known.inner(name), name)


def _value(reader: Reader, writer: ArgumentsWriter, known: _Known, name: str) -> Steps:
    """Read up to and over the closing tag."""
    space = yield from reader.space()
    if not (yield from reader.literal(f"{_MARK}<")):
        yield from _text(reader, writer, known.types, (space, f"{_MARK}</{name}>"))
        return
    tag, end = (yield from reader.collect(">", limit=400)), f"/{name}"
    types = known.types
    if tag == end:
        empty = [] if "string" in types else [_EMPTY[kind] for kind in _EMPTY if kind in types]
        writer.scalar(next(iter(empty), typed_text(space, types)))
        return
    is_list = tag == "item" and ("array" in types or "object" not in types)
    writer.open("[" if is_list else "{")
    while tag != end:
        if is_list and tag == "item":
            yield from _value(reader, writer, known.inner(tag, is_item=True), tag)
        elif is_list or tag.startswith("/"):
            raise BrokenCallError(f"{tag[:20]!r} stands where {end!r} may")
        else:
            yield from _member(reader, writer, known, tag)
        tag = yield from _tag(reader)
    writer.close()


def _text(
    reader: Reader, writer: ArgumentsWriter, types: frozenset[str], around: tuple[str, str]
) -> Steps:
    """A value without tags in it; strings stream. around: what was read of it, and what ends it."""
    begun, end = around
    if types and types != {"string"}:
        writer.scalar(typed_text(begun + (yield from reader.collect(end)), types))
        return
    writer.string(begun)
    if not (yield from reader.until((end,), writer.string)):
        raise CutCallError
    writer.end_string()


def _grammar(wanted: CallGrammar) -> str:
    calls = []
    for tool in wanted.tools:
        body = _members(wanted, _Known(tool.parameters, tool.parameters))
        head = wanted.literal(f'{_MARK}<invoke name="{tool.name}">')
        calls.append(f"{head} {body} {wanted.literal(f'{_MARK}</invoke>{chr(10)}')}")
    opening = wanted.literal(f"{_OPEN}\n")
    return f"{opening} {one_or_more(wanted, calls, '')} {wanted.literal(_CLOSE)}"


def _members(wanted: CallGrammar, known: _Known) -> str:
    """In the schema's order, those not required optional."""
    properties, required = known.says.get("properties"), known.says.get("required") or ()
    parts = []
    for name in properties if isinstance(properties, Mapping) else {}:
        body = _element(wanted, known.inner(name), name)
        parts.append(body if name in required else f"({body})?")
    return " ".join(parts)


def _element(wanted: CallGrammar, known: _Known, name: str) -> str:
    """A value in its tags."""
    head, tail = wanted.literal(f"{_MARK}<{name}>"), f"{_MARK}</{name}>"
    is_built = known.depth < _DEPTH_LIMIT // 2
    if is_built and known.types == {"object"} and known.says.get("properties"):
        return f"{head} {_members(wanted, known)} {wanted.literal(tail)}"
    if is_built and known.types == {"array"} and "items" in known.says:
        item = _element(wanted, known.inner("item", is_item=True), "item")
        return f"{head} ({item})* {wanted.literal(tail)}"
    return f"{head} {value_grammar(wanted, known.root, known.schema, tail)}"


FORMAT = ChatFormat(
    name="minimax_m3",
    reasoning=_THINK,
    calls=CallSyntax(opens=(_OPEN,), parse=_parse, closes=(_CLOSE,), grammar=_grammar),
    visible=(_THINK.start, _THINK.end, _MARK, "<tool_call>", "</tool_call>"),
    # a reply without reasoning begins with the mark that ends it
    wraps=(_THINK.end,),
    lead=_THINK.end,
    switch=ThinkSwitch(
        flags=(),
        effort="thinking_mode",
        levels={
            "none": "disabled",
            **dict.fromkeys(("minimal", "low"), "adaptive"),
            **dict.fromkeys(("medium", "high", "max"), "enabled"),
        },
        on="enabled",
        off="disabled",
    ),
    signs=((_MARK,),),
)
