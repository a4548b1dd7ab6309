"""PARAMETER keys: their types, how text becomes a value, and how values are printed."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ftman.errors import UsageError

INT_KEYS = (
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "draft_num_predict",
    "num_keep",
    "seed",
    "num_predict",
    "top_k",
    "repeat_last_n",
)
FLOAT_KEYS = (
    "top_p",
    "min_p",
    "typical_p",
    "temperature",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
)
BOOL_KEYS = ("use_mmap",)
LIST_KEYS = ("stop",)
DEPRECATED_KEYS = (
    "penalize_newline",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mlock",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
)

_INT = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


def typed_parameters(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Give each (key, text) its type; `stop` collects, of other keys the last wins.

    Deprecated keys are left out.   Raises: UsageError with Ollama's text.
    """
    typed: dict[str, Any] = {}
    for key, text in pairs:
        if key in DEPRECATED_KEYS:
            continue
        value = typed_parameter(key, text)
        if key in LIST_KEYS:
            typed.setdefault(key, []).append(value)
        else:
            typed[key] = value
    return typed


def typed_parameter(key: str, text: str) -> Any:
    """One value from its text.   Raises: UsageError (unknown parameter, value of wrong type)."""
    convert = _CONVERTERS.get(key)
    if convert is None:
        known = ", ".join(sorted(_CONVERTERS))
        raise UsageError(f"unknown parameter '{key}'", hint=f"Known parameters: {known}.")
    return convert(text)


def printed_parameters(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, text) of each line to print: keys sorted, one line per list item, text bare."""
    for key in sorted(parameters):
        value = parameters[key]
        for item in value if isinstance(value, list | tuple) else (value,):
            yield key, item if isinstance(item, str) else bare(item)


def parameter_lines(parameters: Mapping[str, Any]) -> str:
    """The `parameters` text of show: key padded to 30, strings quoted, no final newline."""
    lines = []
    for key in sorted(parameters):
        value = parameters[key]
        for item in value if isinstance(value, list | tuple) else (value,):
            shown = quoted(item) if isinstance(item, str) else bare(item)
            lines.append(f"{key:<30} {shown}")
    return "\n".join(lines)


def quoted(text: str) -> str:
    """Text in double quotes with escapes, as Go's %q prints it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def bare(value: Any) -> str:
    """A number or bool as Go prints it: 1 for 1.0, true for True."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return str(value)


def _int(text: str) -> int:
    if not _INT.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise UsageError(f"invalid int value [{text}]", hint="Give a whole number, such as 4096.")
    return int(text)


def _float(text: str) -> float:
    value = float(text) if _FLOAT.fullmatch(text) else math.nan
    try:
        narrow = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        narrow = math.inf
    if not math.isfinite(narrow):
        raise UsageError(f"invalid float value [{text}]", hint="Give a number, such as 0.7.")
    return value


def _bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise UsageError(f"invalid bool value [{text}]", hint="Give true or false.")


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(INT_KEYS, _int),
    **dict.fromkeys(FLOAT_KEYS, _float),
    **dict.fromkeys(BOOL_KEYS, _bool),
    **dict.fromkeys(LIST_KEYS, str),
}
