"""The functions a Go template may call: the language's own, and those of Ollama's templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote_plus

from ftman.chat import traced
from ftman.chat.gotext.printf import sprintf
from ftman.chat.gotext.values import Struct, json_text, plain_text, text_of, truth

SHORT_CIRCUIT = frozenset(["and", "or"])
"""Evaluated by the interpreter, which stops at the argument that decides."""

_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;", "\0": "\ufffd"}
_JS = {"\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026",
       "=": "\\u003D"}  # fmt: skip
_TYPESCRIPT = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean",
               "array": "any[]", "object": "Record<string, any>", "null": "null"}  # fmt: skip


class CallError(ValueError):
    """A function was called wrongly; the interpreter adds its name and the line."""


@dataclass(frozen=True)
class Builtins:
    """The function table of one rendering. now: local time."""

    now: datetime

    def table(self) -> Mapping[str, Callable[..., Any]]:
        """Name -> function."""
        today, yesterday = self.now.date(), (self.now - timedelta(days=1)).date()
        return {
            **_PURE,
            "currentDate": lambda *form: today.isoformat(),
            "yesterdayDate": lambda *form: yesterday.isoformat(),
        }


def names() -> frozenset[str]:
    """All function names, for the parser."""
    return frozenset(Builtins(datetime.min + timedelta(days=1)).table()) | SHORT_CIRCUIT


def index(value: Any, *keys: Any) -> Any:
    """`index x 1 "a"` is x[1]["a"]; a missing map key gives the zero value."""
    for key in keys:
        if value is None:
            raise CallError("index of untyped nil")
        if isinstance(value, Mapping):
            if not isinstance(key, str):
                raise CallError(f"value has type {_kind(key)}; should be string")
            value = value.get(key)
            continue
        items: Any = value.encode() if isinstance(value, str) else value
        if not isinstance(items, list | tuple | bytes):
            raise CallError(f"can't index item of type {_kind(value)}")
        value = items[_position(key, len(items) - 1)]
    return value


def cut(value: Any, *bounds: Any) -> Any:
    """`slice x 1 2` is x[1:2]; positions in a string are bytes."""
    if len(bounds) > 3 or (len(bounds) == 3 and isinstance(value, str)):
        raise CallError("too many slice indexes")
    if not isinstance(value, str | list | tuple):
        raise CallError(f"can't slice item of type {_kind(value)}")
    size = len(value.encode()) if isinstance(value, str) else len(value)
    start = _position(bounds[0], size) if bounds else 0
    stop = _position(bounds[1], size) if len(bounds) > 1 else size
    if start > stop:
        raise CallError(f"invalid slice index: {start} > {stop}")
    if not isinstance(value, str) or value.isascii():
        return value[start:stop]
    part = value.encode()[start:stop].decode("utf-8", "replace")
    return traced.taint(part, traced.origin_within(value))


def length(value: Any) -> int:
    """`len x`; of a string in bytes."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping | list | tuple) and not isinstance(value, Struct):
        return len(value)
    raise CallError(f"len of type {_kind(value)}")


def equal(first: Any, *others: Any) -> bool:
    """`eq a b c` is a == b or a == c."""
    if not others:
        raise CallError("missing argument for comparison")
    for other in others:
        if first is None or other is None:
            if first is other:
                return True
            continue
        if _kind(first) != _kind(other):
            raise CallError("incompatible types for comparison")
        if isinstance(first, Mapping | list | tuple):
            raise CallError(f"non-comparable type {_kind(first)}")
        if first == other:
            return True
    return False


def less(first: Any, second: Any) -> bool:
    """`lt a b`; of numbers or strings."""
    if _kind(first) != _kind(second) or _kind(first) not in ("number", "string"):
        raise CallError("incompatible types for comparison")
    return bool(first < second)


def sprint(*values: Any) -> str:
    """`print`: a space only between two values that are not strings."""
    parts: list[str] = []
    for idx, value in enumerate(values):
        both = idx and not isinstance(value, str) and not isinstance(values[idx - 1], str)
        parts += [" "] if both else []
        parts.append(_printed(value))
    return traced.join(parts)


def sprintln(*values: Any) -> str:
    """`println`: spaces between all values, a line end behind."""
    parts = [part for value in values for part in (" ", _printed(value))]
    return traced.join([*parts[1:], "\n"])


def typescript_type(prop: Any) -> str:
    """The TypeScript type of a tool property, for templates that describe tools that way."""
    if not isinstance(prop, Mapping):
        raise CallError(f"wrong type for value; expected a tool property; got {_kind(prop)}")
    if options := prop.get("AnyOf"):
        return " | ".join(typescript_type(item) for item in options)
    kinds = prop.get("Type") or []
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return " | ".join(_TYPESCRIPT.get(kind, "any") for kind in kinds) or "any"


def _escaper(table: Mapping[str, str], controls: bool = False) -> Callable[..., str]:
    def escape(*values: Any) -> str:
        text = sprint(*values)
        parts = [table.get(char, char) for char in text]
        if controls:
            parts = [f"\\u{ord(p):04X}" if len(p) == 1 and p < " " else p for p in parts]
        return traced.taint("".join(parts), traced.origin_within(text))

    return escape


def _urlquery(*values: Any) -> str:
    text = sprint(*values)
    return traced.taint(quote_plus(text, safe="~"), traced.origin_within(text))


def _json(value: Any) -> str:
    return traced.taint(json_text(value), traced.origin_within(value))


def _call(*values: Any) -> Any:
    what = _kind(values[0]) if values else "nothing"
    raise CallError(f"non-function of type {what}: no template value is a function")


def _printed(value: Any) -> str:
    return "<nil>" if value is None else text_of(value)


def _position(key: Any, limit: int) -> int:
    if isinstance(key, bool) or not isinstance(key, int):
        raise CallError(f"cannot index slice/array with type {_kind(key)}")
    if not 0 <= key <= limit:
        raise CallError(f"index out of range: {key}")
    return key


def _kind(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, Struct):
        return "struct"
    return "map" if isinstance(value, Mapping) else "slice"


_PURE: Mapping[str, Callable[..., Any]] = {
    "not": lambda value: not truth(value),
    "eq": equal,
    "ne": lambda first, second: not equal(first, second),
    "lt": less,
    "le": lambda first, second: less(first, second) or equal(first, second),
    "gt": lambda first, second: not less(first, second) and not equal(first, second),
    "ge": lambda first, second: not less(first, second),
    "len": length,
    "index": index,
    "slice": cut,
    "print": sprint,
    "printf": lambda form, *values: sprintf(form, values),
    "println": sprintln,
    "html": _escaper(_HTML),
    "js": _escaper(_JS, controls=True),
    "urlquery": _urlquery,
    "call": _call,
    "json": _json,
    "toTypeScriptType": typescript_type,
}

__all__ = ["Builtins", "CallError", "SHORT_CIRCUIT", "names", "plain_text"]
