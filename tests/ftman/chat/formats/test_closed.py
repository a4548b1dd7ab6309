"""Which objects of a schema are closed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftman.chat.formats.closed import closed, closed_constraint
from ftman.chat.types import Constraint

TEXT = {"type": "string"}
SHUT = {"additionalProperties": False}


def named(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (named(a=TEXT), named(a=TEXT) | SHUT),
        (named(a=named(b=TEXT)), named(a=named(b=TEXT) | SHUT) | SHUT),
        ({"items": named(a=TEXT)}, {"items": named(a=TEXT) | SHUT}),
        ({"additionalProperties": named(a=TEXT)}, {"additionalProperties": named(a=TEXT) | SHUT}),
        ({"prefixItems": [named(a=TEXT)]}, {"prefixItems": [named(a=TEXT) | SHUT]}),
        ({"anyOf": [named(a=TEXT), TEXT]}, {"anyOf": [named(a=TEXT) | SHUT, TEXT]}),
        (
            {"$defs": {"p": named(a=TEXT)}, "items": {"$ref": "#/$defs/p"}},
            {"$defs": {"p": named(a=TEXT) | SHUT}, "items": {"$ref": "#/$defs/p"}},
        ),
    ],
)
def test_objects_with_names_are_closed(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {}},
        named(a=TEXT) | {"additionalProperties": True},
        named(a=TEXT) | {"additionalProperties": TEXT},
        named(a=TEXT) | {"patternProperties": {"^x": TEXT}},
        named(a=TEXT) | {"required": ["a", "b"]},
        named(a=TEXT) | {"unevaluatedProperties": False},
        {"allOf": [named(a=TEXT), named(b=TEXT)]},
        named(a=TEXT) | {"anyOf": [named(b=TEXT), named(c=TEXT)]},
        {"anyOf": [named(a=TEXT)], "oneOf": [named(b=TEXT)]},
        {"if": named(a=TEXT), "then": named(b=TEXT)},
        {"allOf": [{"$ref": "#/$defs/p"}, named(b=TEXT)], "$defs": {"p": named(a=TEXT)}},
        named(b=TEXT) | {"$ref": "#/definitions/p", "definitions": {"p": named(a=TEXT)}},
        True,
        [],
        "text",
    ],
)
def test_what_says_more_or_is_one_of_several_parts_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema


def test_what_lies_below_a_part_is_closed() -> None:
    inner = {"allOf": [named(a=named(b=TEXT)), named(c=TEXT)]}
    assert closed(inner) == {"allOf": [named(a=named(b=TEXT) | SHUT), named(c=TEXT)]}


def test_a_property_may_bear_the_name_of_a_keyword() -> None:
    schema = named(properties=TEXT, allOf=TEXT, items=named(additionalProperties=TEXT))
    shut = named(additionalProperties=TEXT) | SHUT
    assert closed(schema) == named(properties=TEXT, allOf=TEXT, items=shut) | SHUT


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_what_is_no_json_is_left_to_the_engine(text: str) -> None:
    assert closed_constraint(Constraint("json_schema", text)) == Constraint("json_schema", text)


def test_what_is_nested_too_deep_stays_as_it_is() -> None:
    schema: dict[str, Any] = named(a=TEXT)
    for _ in range(5000):
        schema = {"items": schema}
    assert closed(schema) is schema


def test_only_schemas_are_touched() -> None:
    assert closed_constraint(None) is None
    for kind in ("json", "regex", "lark"):
        given = Constraint(kind, '{"properties": {"a": {}}}')
        assert closed_constraint(given) is given
    found = closed_constraint(Constraint("json_schema", json.dumps(named(é=TEXT))))
    assert found is not None
    assert json.loads(found.text) == named(é=TEXT) | SHUT
