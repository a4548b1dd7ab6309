"""A schema as a Lark expression in Gemma's notation of arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ftman.chat.formats.base import CallGrammar
from ftman.chat.formats.calls_xml import members, one_or_more

_QUOTE = '<|"|>'
_NUMBERS = {"integer": "/-?[0-9]+/", "number": r"/-?[0-9]+(\.[0-9]+)?/"}
_DEPTH_LIMIT = 8


def gemma_grammar(opening: str, closing: str, wanted: CallGrammar) -> str:
    """One or more calls of the wanted tools."""
    calls = []
    for tool in wanted.tools:
        head = wanted.literal(f"{opening}call:{tool.name}")
        body = _object(wanted, tool.parameters, 0)
        calls.append(f"{head} {body} {wanted.literal(closing)}")
    return one_or_more(wanted, calls, "")


def _object(wanted: CallGrammar, schema: Mapping[str, Any], depth: int) -> str:
    properties = schema.get("properties")
    required = schema.get("required") or ()
    pairs = properties.items() if isinstance(properties, Mapping) else ()
    needed: list[str] = []
    others: list[str] = []
    for name, value in pairs:
        pair = f"{json.dumps(name + ':')} {_value(wanted, value, depth + 1)}"
        (needed if name in required else others).append(pair)
    body = members(needed, others, '","')
    return f'"{{" {body} "}}"'


def _value(wanted: CallGrammar, schema: Any, depth: int) -> str:
    known = schema if isinstance(schema, Mapping) and depth < _DEPTH_LIMIT else {}
    kind = known.get("type")
    texts = known.get("enum")
    if texts and all(isinstance(text, str) for text in texts):
        options = " | ".join(json.dumps(text) for text in texts)
        return f"{wanted.literal(_QUOTE)} ({options}) {wanted.literal(_QUOTE)}"
    if kind in _NUMBERS:
        return _NUMBERS[kind]
    if kind == "boolean":
        return '("true" | "false")'
    if kind == "object" and "properties" in known:
        return _object(wanted, known, depth)
    if kind == "array":
        item = _value(wanted, known.get("items"), depth + 1)
        return f'"[" ({item} ("," {item})*)? "]"'
    return f"{wanted.literal(_QUOTE)} {wanted.until(_QUOTE)}"
