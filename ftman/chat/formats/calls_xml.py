"""Calls whose arguments are tags with raw text in them; shared by several formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ftman.chat.formats.arguments import types_in
from ftman.chat.formats.base import CallGrammar

Layout = Callable[[str], tuple[str, str]]
"""The texts around the value of a parameter of some name."""


def parameters_grammar(wanted: CallGrammar, schema: Mapping[str, Any], layout: Layout) -> str:
    """The expression of a call's parameters: in the schema's order, those not required optional."""
    properties = schema.get("properties")
    required = schema.get("required") or ()
    parts = []
    for name, value in (properties if isinstance(properties, Mapping) else {}).items():
        head, tail = layout(name)
        body = f"{wanted.literal(head)} {value_grammar(wanted, schema, value, tail)}"
        parts.append(body if name in required else f"({body})?")
    return " ".join(parts)


def one_or_more(wanted: CallGrammar, calls: list[str], join: str) -> str:
    """One of `calls`, and more where several are wanted."""
    one = "(" + " | ".join(calls) + ")"
    return f"{one} ({wanted.literal(join)} {one})*" if wanted.several else one


def members(needed: list[str], others: list[str], comma: str) -> str:
    """Some that must stand there, and then any of the others, in order, with commas between."""
    if needed:
        return f" {comma} ".join(needed) + "".join(f" ({comma} {other})?" for other in others)
    found = " | ".join(
        other + "".join(f" ({comma} {later})?" for later in others[idx + 1 :])
        for idx, other in enumerate(others)
    )
    return f"({found})?" if found else ""


def value_grammar(wanted: CallGrammar, root: Mapping[str, Any], schema: Any, tail: str) -> str:
    """The expression of one raw value and the text that ends it."""
    types = types_in(schema, root)
    texts = schema.get("enum") if isinstance(schema, Mapping) else None
    if texts and all(isinstance(text, str) and text for text in texts):
        options = " | ".join(wanted.literal(text) for text in texts)
        return f"({options}) {wanted.literal(tail)}"
    if not types or "string" in types:
        return wanted.until(tail)
    inner = {**schema, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
    return f"{wanted.json(inner)} {wanted.literal(tail)}"
