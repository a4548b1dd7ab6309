"""Native routes about the server and the installed models."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import GO_TEMPLATE, Manager, Tiny, ids_of, lines_of, managing


@pytest.fixture
def own(tmp_path: Path) -> Any:
    """A manager that a test may change."""
    with managing(tmp_path, FakeScript(tokens=ids_of("ok"))) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/plain; charset=utf-8"),
        ("/api/version", "application/json; charset=utf-8"),
        ("/api/tags", "application/json; charset=utf-8"),
    ],
)
def test_get_and_head(manager: Manager, path: str, kind: str) -> None:
    whole, head = manager.http.get(path), manager.http.head(path)
    for reply in (whole, head):
        assert (reply.status_code, reply.headers["content-type"]) == (200, kind)
        assert reply.headers["server"].startswith("ft/")
        assert reply.headers["x-request-id"].startswith("req_")
    assert head.content == b""
    assert whole.content
    assert not whole.content.endswith(b"\n")


def test_root_version_status(manager: Manager) -> None:
    assert manager.http.get("/").text == "Ollama is running"
    assert re.fullmatch(r"\d+\.\d+\.\d+", manager.http.get("/api/version").json()["version"])
    status = manager.http.get("/api/status").json()
    assert status == {"cloud": {"disabled": True, "source": "config"}}


def test_unknown_paths_wrong_methods_and_slashes(manager: Manager) -> None:
    reply = manager.http.get("/nope")
    assert (reply.status_code, reply.text) == (404, "404 page not found")
    reply = manager.http.head("/api/ps")
    assert reply.status_code == 405
    reply = manager.http.get("/api/chat")
    assert (reply.status_code, reply.text) == (405, "405 method not allowed")
    assert manager.http.request("TRACE", "/api/chat").status_code == 405
    assert manager.http.get("/v1/nope").json()["error"]["code"] == "not_found"
    assert manager.http.get("/v1/chat/completions").json()["error"]["code"] == "wrong_method"
    assert manager.http.get("/api/tags/").status_code == 301
    assert manager.http.post("/api/chat/").status_code == 307


def test_tags_entries(manager: Manager) -> None:
    models = manager.http.get("/api/tags").json()["models"]
    assert {entry["name"] for entry in models} == {"tiny:latest", "go:latest", "tools:latest"}
    entry = next(entry for entry in models if entry["name"] == "tiny:latest")
    assert list(entry)[:6] == ["name", "model", "modified_at", "size", "digest", "details"]
    assert re.fullmatch(r"[0-9a-f]{64}", entry["digest"])
    assert entry["details"]["families"] == ["llama"]
    assert entry["details"]["context_length"] == 512
    assert entry["size"] > 4096


def test_tags_tell_what_a_template_of_ones_own_can_do(tmp_path: Path) -> None:
    template = "{{ range .Tools }}{{ .Function }}{{ end }}" + GO_TEMPLATE
    with managing(tmp_path, models=(Tiny("own:latest", template=template),)) as manager:
        (entry,) = manager.http.get("/api/tags").json()["models"]
        shown = manager.http.post("/api/show", json={"model": "own"}).json()
    assert entry["capabilities"] == shown["capabilities"] == ["completion", "tools"]


def test_a_parameter_of_a_wrong_type_leaves_the_lists_whole(tmp_path: Path) -> None:
    models = (Tiny("good:latest"), Tiny("bad:latest", parameters={"temperature": [1]}, seed=1))
    with managing(tmp_path, models=models) as manager:
        ids = {item["id"] for item in manager.http.get("/v1/models").json()["data"]}
        assert ids == {"good:latest", "bad:latest"}
        assert manager.http.get("/v1/models/bad").json()["max_model_len"] == 512
        reply = manager.http.post("/api/generate", json={"model": "bad", "prompt": "x"})
    assert (reply.status_code, reply.json()["error"]) == (
        500,
        'option "temperature" must be of type float32',
    )


@pytest.mark.parametrize("key", ["model", "name"])
def test_show(manager: Manager, key: str) -> None:
    value = manager.http.post("/api/show", json={"model": "", key: "tiny"}).json()
    assert value["license"] == "MIT"
    assert '<|end|>"' in value["parameters"]
    assert "temperature                    0.6" in value["parameters"]
    assert "FROM" in value["modelfile"]
    assert "<|im_start|>" in value["template"]
    assert value["model_info"]["tokenizer.ggml.tokens"] is None
    assert "general.name" not in value["model_info"]
    assert value["tensors"] == [{"name": "token_embd.weight", "type": "F32", "shape": [64, 320]}]
    assert "completion" in value["capabilities"]
    assert "system" not in value
    verbose = manager.http.post("/api/show", json={"model": "tiny", "verbose": True}).json()
    assert verbose["model_info"]["tokenizer.ggml.tokens"] == ["a", "b"]
    own = manager.http.post("/api/show", json={"model": "go", "system": "Mine."}).json()
    assert (own["system"], own["template"]) == ("Mine.", GO_TEMPLATE)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("POST", "show", {}, 400, "model is required"),
        ("POST", "show", {"model": "a//b"}, 400, "invalid model name"),
        ("POST", "show", {"model": "nope"}, 404, "model 'nope:latest' not found"),
        ("POST", "copy", {"source": "", "destination": "b"}, 400, 'source "" is invalid'),
        ("POST", "copy", {"source": "a", "destination": "b:"}, 400, 'destination "b:" is invalid'),
        ("POST", "copy", {"source": "no", "destination": "b"}, 404, 'model "no" not found'),
        ("DELETE", "delete", {}, 400, "model is required"),
        ("DELETE", "delete", {"model": "a b"}, 400, 'name "a b" is invalid'),
        ("DELETE", "delete", {"name": "nope"}, 404, "model 'nope' not found"),
        ("POST", "pull", {"model": ""}, 400, "invalid model name"),
        ("POST", "pull", {"model": "a\n"}, 400, "invalid model name"),
        ("POST", "create", {"model": "a//b", "from": "tiny"}, 400, "invalid model name"),
        ("POST", "create", {"model": "a"}, 400, "neither 'from' or 'files' was specified"),
        (
            "POST",
            "create",
            {"model": "a", "files": {"../x": "sha256:" + "0" * 64}},
            400,
            "file path must be relative",
        ),
        ("POST", "create", {"model": "a", "files": {"x": ""}}, 400, "invalid digest format"),
        ("POST", "create", {"model": "a", "files": {"x": "md5:1"}}, 400, "invalid digest format"),
        (
            "POST",
            "create",
            {"model": "a", "from": "tiny", "quantize": "q4_K_M"},
            400,
            "unsupported quantization type q4_K_M - supported types are Q8_0, Q4_0, MXFP4",
        ),
        (
            "POST",
            "create",
            {"model": "a", "from": "tiny", "adapters": {"a.gguf": "sha256:" + "0" * 64}},
            400,
            f"blob sha256:{'0' * 64} of 'a.gguf' has not been uploaded",
        ),
        ("POST", "push", {}, 400, "model is required"),
    ],
)
def test_error_table(
    manager: Manager, method: str, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    reply = manager.http.request(method, f"/api/{path}", json=body)
    assert (reply.status_code, reply.json()["error"]) == (status, text)


def test_copy_delete_and_empty_bodies(own: Manager) -> None:
    copied = own.http.post("/api/copy", json={"source": "tiny", "destination": "me/other:v1"})
    assert (copied.status_code, copied.content) == (200, b"")
    again = own.http.post("/api/copy", json={"source": "tiny", "destination": "tiny"})
    assert again.status_code == 200
    assert len(own.http.get("/api/tags").json()["models"]) == 2
    for name in ("tiny", "me/other:v1"):
        gone = own.http.request("DELETE", "/api/delete", json={"model": name})
        assert (gone.status_code, gone.content) == (200, b"")
    assert own.http.get("/api/tags").json() == {"models": []}
    assert list(own.config.paths.ftw.iterdir()) == []


def test_create_from_a_model_merges(own: Manager) -> None:
    body = {
        "model": "mine",
        "from": "tiny",
        "system": "Be brief.",
        "parameters": {"temperature": 0.1, "stop": ["X"]},
        "license": ["MIT", "BSD"],
        "messages": [{"role": "user", "content": "hi"}],
    }
    lines = lines_of(own.http.post("/api/create", json=body))
    statuses = [line["status"] for line in lines]
    assert statuses[-2:] == ["writing manifest", "success"]
    assert any(status.startswith("using existing layer sha256:") for status in statuses)
    assert any(status.startswith("creating new layer sha256:") for status in statuses)
    shown = own.http.post("/api/show", json={"model": "mine"}).json()
    assert shown["system"] == "Be brief."
    assert shown["license"] == "MIT\nBSD"
    assert shown["messages"] == [{"role": "user", "content": "hi"}]
    assert shown["details"]["parent_model"] == "tiny:latest"
    whole = own.http.post("/api/create", json=body | {"stream": False})
    assert whole.json() == {"status": "success"}


def test_blobs(manager: Manager) -> None:
    data = b"some bytes" * 1000
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    path = f"/api/blobs/{digest}"
    assert manager.http.head(path).status_code == 404
    assert manager.http.post(path, content=data).status_code == 201
    assert manager.http.head(path).status_code == 200
    assert manager.http.head(path.replace("sha256:", "sha256-")).status_code == 200
    again = manager.http.post(path, content=data)
    assert (again.status_code, again.content) == (200, b"")
    wrong = "sha256:" + "0" * 64
    reply = manager.http.post(f"/api/blobs/{wrong}", content=b"x")
    got = "sha256:" + hashlib.sha256(b"x").hexdigest()
    assert reply.status_code == 400
    assert reply.json()["error"] == f'digest mismatch, expected "{wrong}", got "{got}"'
    assert manager.http.head(f"/api/blobs/{got}").status_code == 200
    for bad in ("md5:00", "sha256:zz", "..%2f..%2fx"):
        assert manager.http.head(f"/api/blobs/{bad}").status_code == 400
        reply = manager.http.post(f"/api/blobs/{bad}", content=b"x")
        assert (reply.status_code, reply.json()["error"]) == (400, "invalid digest format")


def test_pull_of_an_unknown_name_is_an_error_line_in_a_200(manager: Manager) -> None:
    reply = manager.http.post("/api/pull", json={"model": "nope"})
    assert reply.status_code == 200
    first, last = lines_of(reply)
    assert first == {"status": "pulling manifest"}
    assert last["error"] == "pull model manifest: file does not exist"
    whole = manager.http.post("/api/pull", json={"model": "nope", "stream": False})
    assert whole.status_code == 500
    assert whole.json()["error"] == "pull model manifest: file does not exist"


def test_names_that_attack_are_refused_everywhere(manager: Manager) -> None:
    names = ["../x", "/etc/passwd", "..%2fx", "a\0b", "a\nb", "-rf", "~", "$(id)", "a\u202eb"]
    names += ["x" * 4096, "a.", "ａ", "con/../x", "a/b/c/d/e", "http://", "x:y:z"]
    for name in names:
        for method, path, key in (
            ("POST", "show", "model"),
            ("POST", "chat", "model"),
            ("POST", "generate", "model"),
            ("DELETE", "delete", "model"),
            ("POST", "copy", "source"),
            ("POST", "create", "model"),
        ):
            body = {key: name, "destination": "b", "prompt": "x", "from": "tiny"}
            reply = manager.http.request(method, f"/api/{path}", json=body)
            assert reply.status_code in (400, 404), (path, name)
            assert "\n" not in reply.json()["error"] or path in ("copy", "delete")


def test_ours(manager: Manager) -> None:
    status = manager.http.get("/api/ft/status").json()
    assert status["paths"]["models"] == str(manager.config.paths.models)
    assert status["settings"]["max_queue"] == 512
    assert manager.http.get("/api/ft/search?q=x").json() == {"models": []}
    assert isinstance(manager.http.get("/api/ft/jobs").json()["jobs"], list)
    assert manager.http.get("/health").json() == {"status": "ok"}
    for route in ("/api/ft/bench", "/api/ft/calibrate"):
        unknown = manager.http.post(route, json={"model": "nosuch"})
        assert unknown.status_code == 404
    assert "nosuch" in unknown.json()["error"]
    assert manager.http.get("/api/ft/status", headers={"host": "evil.example"}).status_code == 403


def test_an_empty_store_lists_nothing(tmp_path: Path) -> None:
    with managing(tmp_path, models=()) as empty:
        assert empty.http.get("/api/tags").json() == {"models": []}
        assert empty.http.get("/v1/models").json()["data"] == []


def test_a_damaged_model_is_named_and_not_loaded(tmp_path: Path) -> None:
    with managing(tmp_path, models=(Tiny(),)) as manager:
        (weights,) = manager.config.paths.ftw.glob("*/weights-00000.ftw")
        weights.write_bytes(b"short")
        reply = manager.http.post("/api/generate", json={"model": "tiny", "prompt": "x"})
        assert reply.status_code == 500
        assert "weights-00000.ftw" in reply.json()["error"]
        (entry,) = manager.http.get("/api/tags").json()["models"]
        assert "weights-00000.ftw" in entry["ft"]["damaged"]
