"""From bytes to checked values: JSON bodies with exact error texts, bounded in size and depth.

What a field means is the dialects' business; which type it has, and how a wrong one is reported,
is decided here, once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ftman.errors import UsageError
from ftman.memory import ROOM

MAX_BODY_BYTES = 64 << 20
"""Largest request body that is parsed, after decompression."""

MAX_CONTAINERS = 250_000
MAX_COMMAS = 2_000_000
"""Bounds on what parsing can make of a body: 64 MiB of `[],` would become 1 GB of lists."""

CONTAINER_BYTES = 1 << 10
VALUE_BYTES = 64
"""What one of them takes, with what is made of it until it is a prompt (875 measured for each of
240,000 messages); of the text there are up to five bytes per byte."""

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_GO_NAMES = {"string": "string", "boolean": "bool", "integer": "int", "number": "float64"}
_KINDS = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "bool",
    int: "number",
    float: "number",
}


class FieldError(UsageError):
    """One field of a request is wrong. param: its path, for dialects that report it."""

    def __init__(self, message: str, param: str = "", *, code: str = "", status: int = 400):
        super().__init__(message, code=code, status=status)
        self.param = param


@dataclass(frozen=True)
class Texts:
    """How one dialect words the errors of a body."""

    empty: str = "missing request body"
    go: bool = True


OLLAMA_TEXTS = Texts()
OPENAI_TEXTS = Texts(empty="EOF", go=False)


def too_large(limit: int) -> FieldError:
    """The error for a body above the limit."""
    return FieldError(
        f"request body is larger than {limit >> 20} MiB; send less",
        code="request_too_large",
        status=413,
    )


def read_fields(data: bytes, kind: str, texts: Texts) -> Fields:
    """Parse a body into an object of fields.

    Trailing data after the object is ignored, as Go's decoder does.
    Raises: FieldError with the dialect's wording.
    """
    if not data.strip():
        raise FieldError(texts.empty)
    value = _parse(data)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        got = _kind(value)
        if texts.go:
            raise FieldError(f"json: cannot unmarshal {got} into Go value of type api.{kind}")
        raise FieldError(f"the request body must be a JSON object, not {got}")
    return Fields(value, kind, texts)


def _parse(data: bytes) -> Any:
    containers, commas = data.count(b"{") + data.count(b"["), data.count(b",")
    if containers > MAX_CONTAINERS:
        raise _too_many(MAX_CONTAINERS, "objects and arrays")
    if commas > MAX_COMMAS:
        raise _too_many(MAX_COMMAS, "values")
    with ROOM.take(5 * len(data) + CONTAINER_BYTES * containers + VALUE_BYTES * commas):
        return _parsed(data)


def _parsed(data: bytes) -> Any:
    text = data.decode("utf-8", "replace").lstrip(" \t\r\n")
    try:
        value, _ = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        raise FieldError(_syntax_text(text, error)) from None
    except RecursionError:
        raise FieldError("exceeded max depth: the JSON is nested too deeply") from None
    except ValueError as error:
        told = str(error)
        if told.startswith("Exceeds"):  # Python's own words, about a setting of Python
            told = "a number in it has too many digits"
        raise FieldError(told[:200]) from None
    # Lone surrogates are legal JSON escapes but no text; they would fail when written out again.
    return _without_surrogates(value) if _SURROGATE.search(data) else value


def _too_many(limit: int, what: str) -> FieldError:
    return FieldError(
        f"request body holds more than {limit} {what}; send less",
        code="request_too_large",
        status=413,
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"invalid character {name[0]!r} looking for beginning of value")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _syntax_text(text: str, error: json.JSONDecodeError) -> str:
    where = error.pos
    unfinished = error.msg.startswith("Unterminated") or not text[where:].strip()
    if unfinished:
        return "unexpected EOF"
    found = text[where:].lstrip()[0]
    shown = found if found.isprintable() else f"\\x{ord(found):02x}"
    places = {
        "Expecting value": "looking for beginning of value",
        "Expecting property name enclosed in double quotes": (
            "looking for beginning of object key string"
        ),
        "Expecting ':' delimiter": "after object key",
        "Expecting ',' delimiter": "after object key:value pair or array element",
        "Invalid control character at": "in string literal",
    }
    return f"invalid character '{shown}' {places.get(error.msg, 'in string escape code')}"


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    return value


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "null")


@dataclass(frozen=True)
class Fields:
    """The fields of one JSON object. Names match in any letter case; null means absent."""

    values: Mapping[str, Any]
    kind: str
    texts: Texts
    path: str = ""
    _folded: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        folded = {str(key).lower(): value for key, value in self.values.items()}
        object.__setattr__(self, "_folded", folded)

    def get(self, name: str) -> Any:
        """The raw value, None when absent."""
        return self._folded.get(name)

    def has(self, name: str) -> bool:
        """True if given and not null, "", [] or {}."""
        return self._folded.get(name) not in (None, "", [], {}, ())

    def text(self, name: str, default: str = "") -> str:
        """A string field."""
        value = self.get(name)
        if value is None:
            return default
        return value if isinstance(value, str) else self.wrong(name, "string", value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean field."""
        value = self.get(name)
        if value is None:
            return default
        return value if isinstance(value, bool) else self.wrong(name, "boolean", value)

    def integer(self, name: str) -> int | None:
        """An integer field; a float without a fraction counts. None when absent."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            return self.wrong(name, "integer", value)
        return value

    def number(
        self, name: str, low: float | None = None, high: float | None = None
    ) -> float | None:
        """A number, optionally within bounds. None when absent."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.wrong(name, "number", value)
        if (low is not None and value < low) or (high is not None and value > high):
            self.invalid(name, f"must be between {low:g} and {high:g}, not {str(value)[:24]}")
        return float(value) if abs(value) < 1e300 else self.wrong(name, "number", value)

    def items(self, name: str) -> list[Any]:
        """An array field; absent is empty."""
        value = self.get(name)
        if value is None:
            return []
        return value if isinstance(value, list) else self.wrong(name, "array", value)

    def strings(self, name: str) -> tuple[str, ...]:
        """An array of strings; absent is empty."""
        items = self.items(name)
        for item in items:
            if not isinstance(item, str):
                self.wrong(name, "string", item)
        return tuple(items)

    def mapping(self, name: str) -> dict[str, Any]:
        """An object field; absent is empty."""
        value = self.get(name)
        if value is None:
            return {}
        return value if isinstance(value, dict) else self.wrong(name, "object", value)

    def child(self, name: str, kind: str = "") -> Fields:
        """An object field as fields of its own."""
        return Fields(self.mapping(name), kind or self.kind, self.texts, self._where(name))

    def objects(self, name: str, kind: str) -> list[Fields]:
        """An array of objects as fields."""
        found = []
        for index, item in enumerate(self.items(name)):
            if not isinstance(item, dict):
                self.wrong(name, kind, item)
            found.append(Fields(item, kind, self.texts, f"{self._where(name)}[{index}]"))
        return found

    def wrong(self, name: str, expected: str, value: Any) -> NoReturn:
        """Report a wrong type.   Raises: FieldError always."""
        where, got = self._where(name), _kind(value)
        if self.texts.go:
            go_type = _GO_NAMES.get(expected, expected)
            raise FieldError(
                f"json: cannot unmarshal {got} into Go struct field "
                f"{self.kind}.{name} of type {go_type}",
                where,
            )
        raise FieldError(f"'{where}' must be of type {expected}, not {got}", where)

    def invalid(self, name: str, rule: str, code: str = "invalid_value") -> NoReturn:
        """Report a wrong value.   Raises: FieldError always."""
        where = self._where(name)
        raise FieldError(f"'{where}' {rule}", where, code=code)

    def _where(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name
