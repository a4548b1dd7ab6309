"""The bounds of what is kept of responses: number, bytes, age."""

from __future__ import annotations

from typing import Any

import pytest

from ftman.gateway.body import FieldError
from ftman.gateway.openai.responses.store import EXPIRY_S, ResponseStore
from tests.fakes.clock import FakeClock


def response(name: str, size: int = 10) -> dict[str, Any]:
    return {"id": name, "output": [{"id": f"item-{name}", "text": "x" * size}]}


def test_the_oldest_go_when_there_are_too_many() -> None:
    store = ResponseStore(FakeClock(), max_count=2)
    for name in "abc":
        assert store.put(response(name), (), [])
    with pytest.raises(FieldError):
        store.get("a")
    assert store.get("c").value() == response("c")


def test_bytes_are_bounded_with_the_earlier_ones_counted() -> None:
    store = ResponseStore(FakeClock(), max_bytes=1000)
    assert not store.put(response("huge", 2000), (), [])
    assert store.put(response("a", 100), (), [{"id": "i"}])
    assert store.put(response("b", 100), store.get("a").parts(), [])
    assert store.put(response("c", 300), (), [])
    with pytest.raises(FieldError):
        store.get("a")
    assert store.get("c")


def test_age_ends_them() -> None:
    clock = FakeClock()
    store = ResponseStore(clock)
    store.put(response("a"), (), [])
    clock.advance(EXPIRY_S - 1)
    store.put(response("b"), (), [])
    assert store.item("item-a") is not None
    clock.advance(2)
    assert store.item("item-a") is None
    with pytest.raises(FieldError) as gone:
        store.get("a", "previous_response_id")
    assert (gone.value.status, gone.value.code) == (404, "previous_response_not_found")
    assert store.get("b")


def test_an_item_is_found_by_its_id_alone() -> None:
    store = ResponseStore(FakeClock())
    store.put(response("a"), (), [{"id": "given", "quotes": "item-b"}])
    assert store.item("given") == {"id": "given", "quotes": "item-b"}
    assert store.item("item-b") is None
