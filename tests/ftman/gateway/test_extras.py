"""Our own routes for the command line: the plan of a pull, a fit, a verification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fakes import tiny_models
from tests.ftman.gateway.serving import Manager


def ndjson(manager: Manager, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = manager.http.post(path, json=body)
    assert reply.status_code == 200
    return [json.loads(line) for line in reply.text.splitlines()]


def test_a_plan_tells_cost_and_memory(manager: Manager, tmp_path: Path) -> None:
    source = tiny_models.build_tiny("mixtral", tmp_path / "src", dtype="bfloat16")
    plan = manager.http.post("/api/ft/plan", json={"model": source.as_uri()}).json()
    assert plan["fits_disk"]
    assert plan["download_bytes"] == 0
    assert plan["disk_bytes"] > 0
    assert plan["forecast"]["fits"]
    assert plan["forecast"]["machine_ram_bytes"] > plan["forecast"]["ram_bytes"] > 0
    assert "tokens_per_s" not in plan["forecast"]


def test_a_model_that_is_not_installed_can_be_fitted(manager: Manager, tmp_path: Path) -> None:
    source = tiny_models.build_tiny("qwen3_moe", tmp_path / "src", dtype="bfloat16")
    body = {"model": source.as_uri(), "device": "rtx-4060-laptop"}
    answer = manager.http.post("/api/ft/fit", json=body).json()
    assert answer["fits"]
    assert answer["device"] == "rtx-4060-laptop"
    assert answer["unbuilt"] == ""
    unknown = manager.http.post("/api/ft/fit", json={"model": "nobody"})
    assert unknown.status_code == 404
    unknown = manager.http.post("/api/ft/fit", json={"model": "nobody", "device": "none"})
    assert unknown.status_code == 400, "the device is looked at before the model is"
    assert "there is no device profile 'none'" in unknown.json()["error"]
    assert "rtx-4060-laptop" in unknown.text


def test_an_unbuilt_family_still_has_sizes(manager: Manager, tmp_path: Path) -> None:
    source = tiny_models.build_tiny("mixtral", tmp_path / "src", dtype="bfloat16")
    config = json.loads((source / "config.json").read_text())
    config |= {"architectures": ["NovelForCausalLM"], "model_type": "novel"}
    (source / "config.json").write_text(json.dumps(config))
    body = {"model": source.as_uri(), "device": "rtx-4060-laptop"}
    answer = manager.http.post("/api/ft/fit", json=body).json()
    assert "NovelForCausalLM" in answer["unbuilt"]
    assert answer["ram_bytes"] > 0


def test_every_model_is_read_and_found_whole(manager: Manager) -> None:
    lines = ndjson(manager, "/api/ft/verify", {})
    assert lines[-1]["status"] == "success"
    found = {item["name"]: item["left"] for item in lines[-1]["models"]}
    assert found == {"tiny:latest": [], "go:latest": [], "tools:latest": []}
    assert any(line["status"].startswith("verifying tiny") for line in lines)


def test_a_flipped_byte_is_named(manager: Manager) -> None:
    folder = manager.service.catalog.find("tools").ftw_path
    path = next(folder.glob("*.ftw"), folder / "tokenizer.json")
    before = path.read_bytes()
    path.write_bytes(bytes([before[0] ^ 1]) + before[1:])
    try:
        (verdict,) = ndjson(manager, "/api/ft/verify", {"model": "tools"})[-1]["models"]
    finally:
        path.write_bytes(before)
    assert verdict["left"][0]["file"] == path.name
    missing = manager.http.post("/api/ft/verify", json={"model": "nobody"})
    assert missing.status_code == 404
