"""A small JSON Schema checker: the part of the language that registry/schema.json uses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from ftman.errors import UsageError
from ftman.pull.data import data_folder

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
}
_WORDS = (
    "$schema title type additionalProperties required properties propertyNames pattern minimum "
    "minProperties minItems items enum"
)
_KNOWN = frozenset(_WORDS.split())


@lru_cache(maxsize=1)
def registry_schema() -> dict[str, Any]:
    """The schema of one registry file."""
    schema: dict[str, Any] = json.loads(
        (data_folder("registry") / "schema.json").read_text("utf-8")
    )
    return schema


def check_entry(value: object, where: str) -> None:
    """Check one parsed registry file.   Raises: UsageError naming the file and the key."""
    for path, reason in problems(value, registry_schema(), ""):
        raise UsageError(
            f"{where}: {path or 'the file'} {reason}",
            hint="registry/README.md describes every key.",
            code="bad_registry",
        )


def problems(value: object, schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """All places where `value` breaks `schema`, as (key path, reason)."""
    unknown = schema.keys() - _KNOWN
    if unknown:
        raise NotImplementedError(f"schema words {sorted(unknown)} are not known here")
    if "enum" in schema and value not in schema["enum"]:
        yield path, f"must be one of {', '.join(map(str, schema['enum']))}"
    kind = schema.get("type")
    if kind and (isinstance(value, bool) or not isinstance(value, _TYPES[kind])):
        yield path, f"must be of type {kind}"
        return
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield path, f"{value[:60]!r} does not match {schema['pattern']}"
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        yield path, f"must be {schema['minimum']} or more"
    if isinstance(value, list):
        yield from _list_problems(value, schema, path)
    if isinstance(value, dict):
        yield from _object_problems(value, schema, path)


def _list_problems(
    value: list[Any], schema: Mapping[str, Any], path: str
) -> Iterator[tuple[str, str]]:
    if len(value) < schema.get("minItems", 0):
        yield path, f"must have {schema['minItems']} or more items"
    for index, item in enumerate(value):
        yield from problems(item, schema.get("items", {}), f"{path}[{index}]")


def _object_problems(
    value: dict[str, Any], schema: Mapping[str, Any], path: str
) -> Iterator[tuple[str, str]]:
    prefix = f"{path}." if path else ""
    if len(value) < schema.get("minProperties", 0):
        yield path, f"must have {schema['minProperties']} or more keys"
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{prefix}{key}", "is missing"
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for key, item in value.items():
        yield from problems(key, schema.get("propertyNames", {}), f"{prefix}{key}")
        if key in known:
            yield from problems(item, known[key], f"{prefix}{key}")
        elif others is False:
            yield f"{prefix}{key}", "is not a known key"
        elif isinstance(others, Mapping):
            yield from problems(item, others, f"{prefix}{key}")
