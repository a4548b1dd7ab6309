"""Go's printf for the kinds of values that templates have."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ftman.chat import traced
from ftman.chat.gotext.values import float_text, text_of

_DIRECTIVE = re.compile(r"%([-+# 0]*)(\d+|\*)?(?:\.(\d+)?)?(.)", re.DOTALL)
_KINDS = ((bool, "bool"), (int, "int"), (float, "float64"), (str, "string"))
_MAX_WIDTH = 10_000


def sprintf(form: Any, values: Sequence[Any]) -> str:
    """Format values; a wrong verb, a missing or surplus value shows in the text, as in Go."""
    if not isinstance(form, str):
        form = text_of(form)
    parts: list[str] = []
    at = used = 0
    for match in _DIRECTIVE.finditer(form):
        parts.append(form[at : match.start()])
        at = match.end()
        if match.group(4) == "%":
            parts.append("%")
        elif used >= len(values):
            parts.append(f"%!{match.group(4)}(MISSING)")
        else:
            parts.append(_directive(match, values[used]))
            used += 1
    rest = form[at:]
    parts.append(rest.removesuffix("%") + "%!(NOVERB)" if rest.endswith("%") else rest)
    if used < len(values):
        extra = ", ".join(f"{_kind(value)}={_shown(value)}" for value in values[used:])
        parts.append(traced.taint(f"%!(EXTRA {extra})", traced.origin_within(list(values))))
    return traced.join(parts)


def _directive(match: re.Match[str], value: Any) -> str:
    flags, width, precision, verb = match.groups()
    has_dot = "." in match.group()[: match.end() - match.start() - 1]
    digits = int(precision or 0) if has_dot else None
    text = _verb(verb, flags, digits, value)
    if text is None:
        text = (
            f"%!{verb}({_kind(value)}={_shown(value)})" if value is not None else f"%!{verb}(<nil>)"
        )
    if not isinstance(text, traced.Traced):
        text = traced.taint(text, traced.origin_within(value))
    return _padded(text, flags, min(int(width), _MAX_WIDTH) if width and width != "*" else 0)


def _verb(verb: str, flags: str, digits: int | None, value: Any) -> str | None:
    if verb in ("v", "s"):
        if verb == "s" and (value is None or isinstance(value, bool | int | float)):
            return None
        text = "<nil>" if value is None else text_of(value)
        if verb == "v" and "+" in flags and isinstance(value, int | float) and value >= 0:
            text = text if isinstance(value, bool) else "+" + text
        return text if digits is None else text[:digits]
    if verb == "q":
        return _quoted(value)
    if verb == "t":
        return text_of(value) if isinstance(value, bool) else None
    if verb in ("d", "c", "x", "X", "o", "b", "U"):
        return _integer(verb, flags, value)
    return _real(verb, flags, digits, value)


def _integer(verb: str, flags: str, value: Any) -> str | None:
    if isinstance(value, str) and verb in ("x", "X"):
        text = value.encode().hex()
        return text.upper() if verb == "X" else text
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    if verb == "c":
        return chr(value) if 0 <= value < 0x110000 else "\ufffd"
    if verb == "U":
        return f"U+{value:04X}"
    prefix = {"x": "0x", "X": "0X", "o": "0", "b": "0b"}.get(verb, "") if "#" in flags else ""
    sign = "-" if value < 0 else ("+" if "+" in flags else " " if " " in flags else "")
    return f"{sign}{prefix}{abs(value):{verb}}"


def _real(verb: str, flags: str, digits: int | None, value: Any) -> str | None:
    if verb not in ("f", "F", "e", "E", "g", "G") or not isinstance(value, float):
        return None
    if verb in ("g", "G") and digits is None:
        text = float_text(value)
    else:
        text = f"{value:.{6 if digits is None else min(digits, 100)}{verb}}"
    return "+" + text if "+" in flags and value >= 0 else text


def _quoted(value: Any) -> str | None:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f")
    if isinstance(value, int) and not isinstance(value, bool):
        char = chr(value) if 0 <= value < 0x110000 else "\ufffd"
        return {"'": "'\\''", "\\": "'\\\\'", "\n": "'\\n'"}.get(char, f"'{char}'")
    if isinstance(value, list | tuple):
        items = [_quoted(item) for item in value]
        return None if None in items else f"[{' '.join(str(item) for item in items)}]"
    return None


def _padded(text: str, flags: str, width: int) -> str:
    gap = width - len(text)
    if gap <= 0:
        return text
    if "-" in flags:
        return text + " " * gap
    if "0" in flags:
        sign = text[:1] if text[:1] in ("+", "-") else text[:0]
        return sign + "0" * gap + text[len(sign) :]
    return " " * gap + text


def _kind(value: Any) -> str:
    return next(
        (name for kind, name in _KINDS if isinstance(value, kind)), "map[string]interface {}"
    )


def _shown(value: Any) -> str:
    return "<nil>" if value is None else text_of(value)
