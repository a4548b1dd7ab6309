"""Expert slots of a loaded model, seen and changed through the manager."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ftman.gateway.serving import Manager


def post(manager: Manager, body: Any) -> Any:
    return manager.http.post("/api/ft/memory", json=body)


def load(manager: Manager) -> None:
    manager.http.post("/api/generate", json={"model": "tiny", "prompt": "", "stream": False})


def test_memory_of_a_loaded_model_is_divided_anew(manager: Manager) -> None:
    load(manager)
    found = post(manager, {"model": "tiny", "expert_slots": 40}).json()
    assert (found["expert_slots"], found["slot_bytes"], found["kv_pages"]) == (40, 4096, 8)
    assert post(manager, {"model": "tiny", "kv_bytes": 5000}).json()["kv_bytes"] == 5000
    entry = manager.http.get("/api/ft/experts").json()["models"][0]
    assert entry["name"] == "tiny:latest"
    assert (entry["stats"]["slots"], entry["stats"]["total"]) == (40, 64)
    assert entry["tokens_per_s"] == 0


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"model": "tiny"}, 400, "either expert_slots or kv_bytes"),
        ({"model": "tiny", "expert_slots": 1, "kv_bytes": 1}, 400, "not both"),
        ({"model": "tiny", "expert_slots": -1}, 400, "0 or more"),
        ({"model": "tiny", "expert_slots": "x"}, 400, "expert_slots"),
        ({"model": "nobody", "expert_slots": 1}, 404, "'nobody' not found"),
        ({"model": "tiny", "expert_slots": 65}, 507, "65 slots asked for, 64 fit"),
    ],
)
def test_what_cannot_be_done_is_said(
    manager: Manager, body: dict[str, Any], status: int, text: str
) -> None:
    load(manager)
    reply = post(manager, body)
    assert text in reply.json()["error"]
    assert reply.status_code == status


def test_model_that_is_not_loaded_has_no_memory_to_divide(manager: Manager) -> None:
    unload = {"model": "tiny", "prompt": "", "keep_alive": 0, "stream": False}
    manager.http.post("/api/generate", json=unload)
    reply = post(manager, {"model": "tiny", "expert_slots": 1})
    assert reply.status_code == 404
    assert "not loaded" in reply.json()["error"]
    assert manager.http.get("/api/ft/experts").json() == {"models": []}
