"""Create with new weights, through the real converter: quantised, and with adapters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import adapters
from tests.fakes.ollama_registry import OllamaRegistry
from tests.fakes.tiny_models import build_tiny, build_tiny_gguf, hub_weights, sizes_of
from tests.ftman.gateway.serving import Manager, lines_of, managing

Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager with nothing installed."""
    with managing(tmp_path_factory.mktemp("plain"), models=()) as running:
        yield running


def upload(manager: Manager, paths: dict[str, Path]) -> dict[str, str]:
    found = {}
    for name, path in paths.items():
        data = path.read_bytes()
        found[name] = "sha256:" + hashlib.sha256(data).hexdigest()
        assert manager.http.post(f"/api/blobs/{found[name]}", content=data).status_code < 300
    return found


def create(manager: Manager, name: str, **body: Any) -> list[str]:
    reply: httpx.Response = manager.http.post(
        "/api/create", json={"model": name, **body}, timeout=60
    )
    lines = lines_of(reply)
    assert "error" not in lines[-1], lines[-1]
    return [line["status"] for line in lines]


def show(manager: Manager, name: str, **body: Any) -> dict[str, Any]:
    value: dict[str, Any] = manager.http.post("/api/show", json={"model": name, **body}).json()
    return value


def adapter(tmp_path: Path) -> dict[str, Path]:
    weights = hub_weights("llama", sizes_of("llama"))
    return adapters.write_peft(tmp_path / "peft", adapters.random_pairs({Q: weights[Q].shape}))


def test_a_folder_becomes_a_quantised_model_and_one_with_an_adapter(
    plain: Manager, tmp_path: Path
) -> None:
    folder = build_tiny("llama", tmp_path / "hf")
    files = upload(plain, {path.name: path for path in folder.iterdir()})
    steps = create(plain, "base", files=files, system="S.")
    assert steps[0] == "converting model"
    steps = create(plain, "small", files=files, quantize="Q8_0")
    assert "quantizing model to Q8_0" in steps
    assert steps[-1] == "success"
    shown = show(plain, "small", verbose=True)
    assert shown["details"]["quantization_level"] == "Q8_0"
    assert {t["type"] for t in shown["tensors"] if t["name"] == Q} == {"Q8_0"}

    # The same from the installed model gives the same weights, and keeps its texts.
    create(plain, "smaller", **{"from": "base", "quantize": "q8_0"})
    again = show(plain, "smaller")
    assert again["system"] == "S."
    assert again["details"]["parent_model"] == "base:latest"
    weights = {m["name"]: m["size"] for m in plain.http.get("/api/tags").json()["models"]}
    assert weights["smaller:latest"] < weights["base:latest"] / 2
    names = {name: plain.service.catalog.find(name).ftw_id for name in ("base", "small", "smaller")}
    assert names["small"] == names["smaller"] != names["base"]

    steps = create(plain, "tuned", **{"from": "base", "adapters": upload(plain, adapter(tmp_path))})
    assert "converting adapter" in steps
    assert any("LoRA adapter" in note for note in show(plain, "tuned")["ft"]["notes"])
    assert plain.service.catalog.find("tuned").ftw_id not in names.values()

    # What is quantised already stays what it is; nothing is left of the try.
    reply = plain.http.post(
        "/api/create", json={"model": "x", "from": "small", "quantize": "q4_0", "stream": False}
    )
    assert "only supported for F16, BF16 and F32 models" in reply.json()["error"]
    assert list(plain.config.paths.partial.iterdir()) == []
    pushed = plain.http.post("/api/push", json={"model": "tuned", "stream": False})
    assert "its weights were made here" in pushed.json()["error"]
    for name in ("base", "small", "smaller", "tuned"):
        plain.http.request("DELETE", "/api/delete", json={"model": name})
    assert [p.name for p in plain.config.paths.ftw.iterdir() if len(p.name) == 64] == []


@pytest.mark.slow
def test_a_gguf_of_a_registry_goes_round(plain: Manager, tmp_path: Path) -> None:
    data = build_tiny_gguf("llama", tmp_path / "tiny.gguf").read_bytes()
    with OllamaRegistry() as registry:
        registry.publish("library/tiny:latest", data, system="Be brief.", template="{{ .Prompt }}")
        name = f"{registry.host}/library/tiny"
        body = {"model": name, "insecure": True, "keep_source": True}
        lines = lines_of(plain.http.post("/api/pull", json=body, timeout=60))
        assert lines[0] == {"status": "pulling manifest"}
        assert lines[-1] == {"status": "success"}
        mine = f"{registry.host}/me/mine:v1"
        plain.http.post("/api/copy", json={"source": name, "destination": mine})
        lines = lines_of(plain.http.post("/api/push", json={"model": mine, "insecure": True}))
        assert [line["status"] for line in lines if "digest" not in line] == [
            "retrieving manifest",
            "pushing manifest",
            "success",
        ]
        assert registry.layers("me/mine:v1")["model"] == data
    steps = create(plain, "q4", **{"from": name, "quantize": "mxfp4"})
    assert steps[-1] == "success"
    assert show(plain, "q4")["details"]["quantization_level"] == "MXFP4"


def test_an_upload_that_is_no_model_is_the_requests_fault(plain: Manager, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"not a model")
    files = upload(plain, {"a.gguf": tmp_path / "a.gguf"})
    body = {"model": "no", "files": files, "stream": False}
    reply = plain.http.post("/api/create", json=body, timeout=60)
    assert (reply.status_code, reply.json()["code"]) == (400, "bad_format")
    assert "not a GGUF file" in reply.json()["error"]
