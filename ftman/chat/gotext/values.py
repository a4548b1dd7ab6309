"""How values look to a Go template: printing, JSON, truth. Texts keep their origins.

Go's maps are dicts, slices are lists, structs are `Struct`. What a structure prints is marked as a
value if any text in it is one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from ftman.chat import traced

_HTML_IN_JSON = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028",
                 "\u2029": "\\u2029"}  # fmt: skip


class Struct(dict[str, Any]):
    """A Go struct: field name -> value. `printed` is its JSON form; it prints as that JSON."""

    def __init__(self, fields: Mapping[str, Any], printed: Any):
        super().__init__(fields)
        self.printed = printed


class JsonMap(dict[str, Any]):
    """A map that prints as JSON, keys in their given order."""


class JsonList(list[Any]):
    """A slice that prints as JSON."""


def truth(value: Any) -> bool:
    """Go's truth: empty and zero values are false, structs are true."""
    return isinstance(value, Struct) or bool(value)


def text_of(value: Any) -> str:
    """What `{{ value }}` prints."""
    if isinstance(value, str):
        return value
    if value is None:
        return "<no value>"
    return traced.taint(plain_text(value), traced.origin_within(value))


def plain_text(value: Any) -> str:
    """Go's %v of a value inside another."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, Struct | JsonMap | JsonList):
        return json_text(value)
    if isinstance(value, Mapping):
        pairs = [f"{key}:{plain_text(value[key])}" for key in sorted(value)]
        return f"map[{' '.join(pairs)}]"
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(plain_text, value))}]"
    return str(value)


def float_text(value: float) -> str:
    """Go's %v of a float64: the fewest digits, an exponent below 1e-4 and from 1e6 up."""
    if math.isnan(value) or math.isinf(value):
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(value)]
    return _shortest(value, -4, 6)


def json_text(value: Any) -> str:
    """JSON as Go marshals it: compact, map keys sorted, `<`, `>` and `&` escaped."""
    if isinstance(value, Struct):
        return json_text(value.printed)
    if isinstance(value, Mapping):
        keys = list(value) if isinstance(value, JsonMap) else sorted(value)
        pairs = [f"{_json_string(str(key))}:{json_text(value[key])}" for key in keys]
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(json_text, value))}]"
    if isinstance(value, str):
        return _json_string(value)
    if isinstance(value, float):
        return _shortest(value, -6, 21)
    return json.dumps(value)


def _json_string(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(_HTML_IN_JSON.get(char, char) for char in quoted)


def _shortest(value: float, low: int, high: int) -> str:
    """The fewest digits that name the value, with an exponent outside [low, high)."""
    number = Decimal(repr(value))
    power = number.adjusted() if number else 0
    if low <= power < high:
        text = f"{number:f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    sign, digits, _ = number.normalize().as_tuple()
    head, tail = digits[0], "".join(map(str, digits[1:]))
    mantissa = f"{head}.{tail}" if tail else f"{head}"
    return f"{'-' if sign else ''}{mantissa}e{'-' if power < 0 else '+'}{abs(power):02d}"
