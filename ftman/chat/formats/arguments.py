"""Arguments that are not written as JSON, turned into JSON while they stream.

What type a raw text has is decided by the tool's schema; without one it is a string.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any

from ftman.chat.formats.reader import CutCallError, Reader, Steps
from ftman.chat.formats.run import CallWriter

_WORDS = {"True": "true", "False": "false", "None": "null"}
_EITHER = ("anyOf", "oneOf", "allOf")


class ArgumentsWriter:
    """Writes one JSON object piece by piece; commas, and what closes it, are taken care of."""

    def __init__(self, call: CallWriter):
        self._call = call
        self._closers: list[str] = []
        self._pending = ""
        self._first = True
        self._in_string = False
        self.open("{")

    def open(self, bracket: str) -> None:
        """Begin an object or a list."""
        self._separate()
        self._closers.append("}" if bracket == "{" else "]")
        self._write(bracket)
        self._first = True

    def close(self) -> None:
        """End the innermost object or list."""
        self._pending = ""
        self._write(self._closers.pop(), opened=False)
        self._first = False

    def key(self, name: str) -> None:
        """The key of the value that comes next."""
        self._separate()
        self._pending += json.dumps(name, ensure_ascii=False) + ": "
        self._first = True

    def scalar(self, text: str) -> None:
        """A whole value, as JSON."""
        self._separate()
        self._write(text)
        self._first = False

    def string(self, piece: str) -> None:
        """A piece of a string; the first one begins it."""
        if not self._in_string:
            self._separate()
            self._in_string = True
            self._write('"')
        self._write(json.dumps(piece, ensure_ascii=False)[1:-1])

    def end_string(self) -> None:
        """End the string, which may be empty."""
        self.string("")
        self._in_string = False
        self._write('"')
        self._first = False

    def complete(self) -> None:
        """End everything.   Raises: BrokenCallError."""
        while self._closers:
            self.close()
        self._call.complete()

    def _separate(self) -> None:
        if not self._first:
            self._pending += ", "

    def _write(self, text: str, *, opened: bool = True) -> None:
        text, self._pending = self._pending + text, ""
        closing = ('"' if self._in_string else "") + "".join(reversed(self._closers))
        self._call.write(text, closing)


def raw_value(
    reader: Reader, writer: ArgumentsWriter, types: frozenset[str], marks: tuple[str, ...]
) -> Steps:
    """Read a raw value up to and over the first of `marks`; strings stream.

    Raises: CutCallError when the text ends before.
    """
    if types and types != {"string"}:
        writer.scalar(typed_text((yield from reader.collect(*marks)), types))
        return
    if not (yield from reader.until(marks, writer.string)):
        raise CutCallError
    writer.end_string()


def typed_text(text: str, types: frozenset[str]) -> str:
    """A raw text as JSON of one of `types`; what is none of them is a string."""
    bare = text.strip()
    if "string" not in types or (bare in ("null", "None") and "null" in types):
        try:
            value = json.loads(_WORDS.get(bare, bare), parse_constant=_refuse)
            return json.dumps(value, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)


def types_of(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """JSON types that a schema allows a property; empty when it does not say."""
    properties = schema.get("properties")
    found = properties.get(name) if isinstance(properties, Mapping) else None
    return types_in(found, schema)


def types_in(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """JSON types that a part of a schema allows; empty when it does not say."""
    return frozenset(kind for part in alternatives(schema, root) for kind in _own_types(part))


def alternatives(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The part itself, or what it refers to, and what it may be instead; each once.

    A part that refers to itself many times over would else be walked for ever.
    """
    waiting, seen = [schema], set()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part.get("$ref"), str):
            waiting.append(_resolved(part["$ref"], root))
            continue
        yield part
        options = [part[key] for key in _EITHER if isinstance(part.get(key), list)]
        waiting += [option for listed in reversed(options) for option in reversed(listed)]


def property_of(schema: Any, root: Mapping[str, Any], name: str) -> Any:
    """What a part of a schema says of a property, None when it says nothing."""
    for part in alternatives(schema, root):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
    return None


def item_of(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a part of a schema says of the entries of a list, None when it says nothing."""
    return next((p["items"] for p in alternatives(schema, root) if "items" in p), None)


def name_until(reader: Reader, *marks: str) -> Generator[None, None, str]:
    """A name up to and over the first of `marks`."""
    return (yield from reader.collect(*marks, limit=256)).strip()


def _own_types(part: Mapping[str, Any]) -> set[str]:
    """What a part says itself, by its type or else by its values."""
    kind = part.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    found = {item for item in kinds if isinstance(item, str)}
    if not found:
        values = [part["const"]] if "const" in part else part.get("enum")
        found = {_type_name(value) for value in values} if isinstance(values, list) else set()
    return found


def _resolved(ref: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in ref.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _refuse(word: str) -> Any:
    raise ValueError(word)
