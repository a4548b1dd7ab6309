"""What a tool's schema says of a part of the arguments."""

from __future__ import annotations

from typing import Any

import pytest

from ftman.chat.formats.arguments import item_of, property_of, types_in, types_of

ROOT: dict[str, Any] = {
    "properties": {
        "plain": {"type": "string"},
        "several": {"type": ["integer", "null"]},
        "either": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/place"}]},
        "fixed": {"const": 3},
        "listed": {"enum": ["a", None]},
        "open": {},
        "odd": {"anyOf": 5, "enum": 7},
    },
    "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("plain", {"string"}),
        ("several", {"integer", "null"}),
        ("either", {"number", "object"}),
        ("fixed", {"number"}),
        ("listed", {"string", "null"}),
        ("open", set()),
        ("odd", set()),
        ("unknown", set()),
    ],
)
def test_types_come_from_the_part_and_what_it_may_be_instead(name: str, types: set[str]) -> None:
    assert types_of(ROOT, name) == types


def test_members_are_found_behind_references() -> None:
    either = ROOT["properties"]["either"]
    assert property_of(either, ROOT, "city") == {"type": "string"}
    assert property_of(either, ROOT, "street") is None
    assert item_of({"oneOf": [{}, {"items": {"type": "null"}}]}, ROOT) == {"type": "null"}


def test_a_part_that_refers_to_itself_many_times_is_walked_once() -> None:
    """Each path through it would be a thousand to the power of its depth."""
    root = {"$defs": {"node": {"anyOf": [{"$ref": "#/$defs/node"}] * 1000 + [{"type": "null"}]}}}
    assert types_in({"$ref": "#/$defs/node"}, root) == {"null"}
    assert property_of({"$ref": "#/$defs/node"}, root, "x") is None
