"""What an answer must look like: response_format, text.format, and local servers' own fields."""

from __future__ import annotations

import json
import re
from typing import Any

from ftman.chat.types import Constraint
from ftman.errors import UnsupportedError
from ftman.gateway.body import FieldError, Fields

_ANY_OBJECT = Constraint("json")
_GBNF = ("grammar", "ebnf")
_LOCAL = {
    "json_schema": "json",
    "guided_json": "json",
    "regex": "regex",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}


def parse_constraint(fields: Fields) -> Constraint | None:
    """The one constraint of a chat or completion request.   Raises: FieldError for two of them."""
    found = [("response_format", response_format(fields))]
    for name in _GBNF:
        if fields.has(name):
            raise UnsupportedError(
                f"'{name}' (GBNF) is not built",
                hint="Send response_format, guided_regex, or a Lark grammar as guided_grammar.",
            )
    found += [(name, _local(fields, name, kind)) for name, kind in _LOCAL.items()]
    outputs = fields.child("structured_outputs")
    for kind in ("json", "regex", "choice", "grammar"):
        found.append((f"structured_outputs.{kind}", _local(outputs, kind, kind)))
    if outputs.has("structural_tag"):
        outputs.invalid("structural_tag", "is not built; send tools, or another constraint")
    if outputs.flag("json_object", False):
        found.append(("structured_outputs.json_object", _ANY_OBJECT))
    given = [(name, constraint) for name, constraint in found if constraint is not None]
    if len(given) > 1:
        names = " and ".join(name for name, _ in given)
        raise FieldError(f"{names} cannot both bind one answer; send one", given[1][0])
    return given[0][1] if given else None


def response_format(fields: Fields) -> Constraint | None:
    """Chat's nested form.   Raises: FieldError for an unknown type or a schema that is none."""
    if not fields.has("response_format"):
        return None
    form = fields.child("response_format")
    kind = form.text("type")
    if kind == "json_schema":
        # Clients send the form of responses here, too: no schema may get lost on the way.
        nested = form.child("json_schema") if form.has("json_schema") else form
        return _of_schema(nested, "schema")
    if kind == "json_object":
        return _of_schema(form, "schema")
    if kind != "text":
        fields.invalid("response_format", f"has the unknown type {kind[:40]!r}")
    return None


def text_format(fields: Fields) -> Constraint | None:
    """The flat form of the responses API.   Raises: FieldError."""
    form = fields.child("text").child("format")
    kind = form.text("type", "text")
    if kind == "json_schema":
        if form.get("schema") is None:
            form.invalid("schema", "is missing: a JSON schema, beside the type")
        return _of_schema(form, "schema")
    if kind == "json_object":
        return _ANY_OBJECT
    if kind != "text":
        fields.invalid("text.format", f"has the unknown type {kind[:40]!r}")
    return None


def _of_schema(holder: Fields, name: str) -> Constraint:
    value = holder.get(name)
    if value is None or value is True:
        return _ANY_OBJECT
    if not isinstance(value, dict):
        holder.wrong(name, "object", value)
    return Constraint("json_schema", _compact(value))


def _local(fields: Fields, name: str, kind: str) -> Constraint | None:
    if not fields.has(name):
        return None
    if kind == "json":
        return _schema_or_text(fields, name)
    if kind == "choice":
        return Constraint("regex", "|".join(re.escape(text) for text in fields.strings(name)))
    return Constraint("regex" if kind == "regex" else "lark", fields.text(name))


def _schema_or_text(fields: Fields, name: str) -> Constraint:
    value = fields.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            fields.invalid(name, "holds no JSON schema")
    if not isinstance(value, dict):
        fields.wrong(name, "object", value)
    return Constraint("json_schema", _compact(value))


def _compact(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
