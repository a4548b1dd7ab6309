"""Objects of a JSON schema hold the properties it names and no others, unless it says otherwise.

JSON Schema leaves objects open, and a small model that may add properties adds them until its
window is full. Local servers (llama.cpp, Ollama) close them, and so do we.
"""

from __future__ import annotations

import json
from typing import Any

from ftman.chat.types import Constraint

_SAYS_MORE = ("additionalProperties", "unevaluatedProperties", "patternProperties")
_JOINING = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "dependentSchemas")
"""Keywords whose schemas bind the same object: closing one would forbid what the others name."""
_NAMED = ("properties", "$defs", "definitions")
_EITHER = ("anyOf", "oneOf")


def closed_constraint(constraint: Constraint | None) -> Constraint | None:
    """A schema closed; everything else, and what is no JSON, as it is: the engine judges it."""
    if constraint is None or constraint.kind != "json_schema":
        return constraint
    try:
        schema = json.loads(constraint.text)
        text = json.dumps(closed(schema), ensure_ascii=False)
    except (ValueError, RecursionError):
        return constraint
    return Constraint("json_schema", text)


def closed(schema: Any) -> Any:
    """The schema with every object closed that nothing else binds; one nested too deep as it is."""
    try:
        return _walk(schema, _is_joined(schema), alone=True)
    except RecursionError:
        return schema


def _walk(schema: Any, joined: bool, alone: bool) -> Any:
    """joined: definitions are parts of objects here; alone: no other schema binds this object."""
    if not isinstance(schema, dict):
        return schema
    own = schema.get("properties")
    binds = [key for key in _JOINING if key in schema]
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            inside = key == "properties" or not joined
            found[key] = {name: _walk(item, joined, inside) for name, item in value.items()}
        elif key in _JOINING and key != "$ref":
            only = alone and binds == [key] and key in _EITHER and "properties" not in schema
            found[key] = _each(value, joined, only)
        elif key in ("items", "prefixItems", "additionalProperties"):
            found[key] = _each(value, joined, True)
        else:
            found[key] = value
    if alone and own and isinstance(own, dict) and not binds and not _says_more(schema, own):
        found["additionalProperties"] = False
    return found


def _says_more(schema: dict[str, Any], own: dict[str, Any]) -> bool:
    required = schema.get("required")
    beside = isinstance(required, list) and any(name not in own for name in map(str, required))
    return beside or any(key in schema for key in _SAYS_MORE)


def _each(value: Any, joined: bool, alone: bool) -> Any:
    if isinstance(value, list):
        return [_walk(item, joined, alone) for item in value]
    return _walk(value, joined, alone)


def _is_joined(schema: Any) -> bool:
    """Whether a definition is named where other schemas bind the same object."""
    if isinstance(schema, list):
        return any(_is_joined(item) for item in schema)
    if not isinstance(schema, dict):
        return False
    parts = schema.get("allOf")
    if "$ref" in schema and any(key in schema for key in ("properties", *_JOINING[:-2])):
        return True
    if isinstance(parts, list) and any(isinstance(part, dict) and "$ref" in part for part in parts):
        return True
    return any(_is_joined(value) for value in schema.values())
