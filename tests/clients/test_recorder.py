"""What passes the recorder unchanged, and what it writes down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.clients.recorder import Exchange, Recorder, Recording, save
from tests.clients.redaction import ROOT, Redactor, expand
from tests.clients.scripted import SCRIPT
from tests.ftman.gateway.serving import Manager, Tiny, managing

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with managing(tmp_path_factory.mktemp("recorded"), SCRIPT, (Tiny(),)) as running:
        yield running


def test_answers_pass_as_they_are_and_are_written_down(manager: Manager) -> None:
    with Recorder(manager.url) as recorder, httpx.Client(trust_env=False) as http:
        streamed = http.post(f"{recorder.url}/api/chat", json=CHAT)
        whole = http.post(f"{recorder.url}/api/chat", json=CHAT | {"stream": False})
        assert http.head(f"{recorder.url}/").status_code == 200
        assert http.get(f"{recorder.url}/nothing").status_code == 404
    assert [json.loads(line) for line in streamed.text.splitlines()][-1]["done"] is True
    assert whole.json()["message"]["content"] == "Hello world"
    seen = [(e.method, e.target, e.status) for e in recorder.exchanges]
    assert seen[:2] == [("POST", "/api/chat", 200)] * 2
    assert recorder.exchanges[0].body == CHAT
    assert recorder.exchanges[0].answer == streamed.text
    assert [e.target for e in recorder.failures()] == ["/nothing"]


def test_a_chunked_body_is_read_whole(manager: Manager) -> None:
    def pieces() -> Iterator[bytes]:
        data = json.dumps(CHAT | {"stream": False}).encode()
        yield data[:10]
        yield data[10:]

    with Recorder(manager.url) as recorder:
        assert httpx.post(f"{recorder.url}/api/chat", content=pieces()).status_code == 200
    assert recorder.exchanges[0].body["model"] == "tiny"


def test_prose_places_ids_and_keys_are_not_kept(tmp_path: Path) -> None:
    uuid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    arguments = json.dumps({"path": f"{ROOT}/a.txt", "text": "word " * 60})
    body = {
        "system": "Some long text. " * 20,
        "tools": [{"name": "read", "description": "Reads a file from the disk, slowly."}],
        "user": f"id {uuid} of {uuid}",
        "arguments": arguments,
        "n": 3,
        "model": "file:///data/models/some.gguf",
    }
    headers = {"Authorization": "Bearer secret", "X-Api-Key": "secret", "Cookie": "secret"}
    exchange = Exchange("POST", "/v1/messages", headers, body, 200, "application/json")
    path = save(Recording("some", "1", [exchange, exchange]), tmp_path)
    assert not any(word in path.read_text() for word in ("secret", "slowly", uuid, str(ROOT)))
    (request,) = json.loads(path.read_text())["requests"]
    assert request["headers"] == {"authorization": "Bearer redacted", "x-api-key": "redacted"}
    kept = request["body"]
    assert kept["system"] == "<320 characters>"
    assert kept["tools"] == [{"name": "read", "description": "<35 characters>"}]
    same = "00000000-0000-4000-8000-000000000001"
    assert kept["user"] == f"id {same} of {same}"
    assert json.loads(kept["arguments"]) == {"path": "/home/user/a.txt", "text": "<300 characters>"}
    assert (kept["n"], kept["model"]) == (3, "file:///home/user/model")
    assert len(expand(kept)["system"]) == 320


def test_texts_at_the_limit_are_kept_and_longer_ones_are_not() -> None:
    assert Redactor().value("x" * 120) == "x" * 120
    assert Redactor().value("x" * 121) == "<121 characters>"
