"""The official ollama client, unpatched, against a manager process: scripted and real engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

from ftman.config import Paths
from tests.e2e.processes import REAL, manager_process
from tests.fakes.tiny_models import build_tiny, build_tiny_gguf
from tests.ftman.gateway.serving import install

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ollama.Client]:
    """A client of a manager with a scripted engine that says "Hello world"."""
    home = tmp_path_factory.mktemp("home")
    install(Paths(home, home / "models"))
    with manager_process(home) as manager:
        yield ollama.Client(host=manager.url, trust_env=False)


def test_chat_whole_and_streamed(client: ollama.Client) -> None:
    whole = client.chat("tiny", HI)
    assert whole.message.content == "Hello world"
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "stop", 11)
    pieces = list(client.chat("tiny", HI, stream=True, options={"temperature": 0}))
    assert "".join(piece.message.content or "" for piece in pieces) == "Hello world"
    assert pieces[-1].done


def test_generate_whole_and_streamed(client: ollama.Client) -> None:
    whole = client.generate("tiny", "Hi")
    assert whole.response == "Hello world"
    assert whole.context
    pieces = list(client.generate("tiny", "Hi", stream=True, keep_alive="5m"))
    assert "".join(piece.response for piece in pieces) == "Hello world"


def test_list_show_ps(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["tiny:latest"]
    shown = client.show("tiny")
    assert shown.details is not None
    assert shown.details.family == "llama"
    assert shown.modelinfo["general.architecture"] == "llama"
    client.generate("tiny")
    (running,) = client.ps().models
    assert running.model == "tiny:latest"
    assert running.expires_at is not None


def test_create_copy_delete(client: ollama.Client) -> None:
    steps = [step.status for step in client.create("mine", from_="tiny", system="S.", stream=True)]
    assert steps[-1] == "success"
    assert client.create("mine2", from_="tiny").status == "success"
    assert client.copy("mine", "again").status == "success"
    for name in ("mine", "mine2", "again"):
        assert client.delete(name).status == "success"
    assert len(client.list().models) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_unknown_model_and_pull(client: ollama.Client, stream: bool) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        list(client.chat("nope", HI, stream=stream))
    assert (caught.value.status_code, caught.value.error) == (404, "model 'nope' not found")
    with pytest.raises(ollama.ResponseError) as caught:
        list(client.pull("no-such-model", stream=stream))
    assert caught.value.error == "pull model manifest: file does not exist"


def test_the_real_engine_from_pull_to_delete(tmp_path: Path) -> None:
    folder = build_tiny("qwen3_moe", tmp_path / "tiny-moe")
    rates = tmp_path / "home" / "state" / "calibration.json"
    rates.parent.mkdir(parents=True)
    rates.write_text("{}")  # nothing is known of the machine, as before every first load
    with manager_process(tmp_path / "home", REAL) as manager:
        client = ollama.Client(host=manager.url, trust_env=False, timeout=120)
        steps = list(client.pull(folder.as_uri(), stream=True))
        assert steps[-1].status == "success"
        assert any(step.total and step.completed for step in steps)
        (model,) = client.list().models
        assert model.model is not None
        options = {"temperature": 0, "num_predict": 6}
        whole = client.chat(model.model, HI, options=options)
        pieces = list(client.chat(model.model, HI, options=options, stream=True))
        assert "".join(p.message.content or "" for p in pieces) == whole.message.content
        assert whole.prompt_eval_count
        assert 1 <= (whole.eval_count or 0) <= 6
        client.generate(model.model, keep_alive=0)
        assert client.ps().models == []
        client.delete(model.model)
        assert client.list().models == []
    assert len(json.loads(rates.read_text())) == 1


def test_create_from_an_uploaded_gguf(tmp_path: Path) -> None:
    path = build_tiny_gguf("llama", tmp_path / "tiny.gguf")
    with manager_process(tmp_path / "home", REAL) as manager:
        client = ollama.Client(host=manager.url, trust_env=False, timeout=120)
        digest = client.create_blob(path)
        assert digest == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        steps = list(
            client.create(
                "from-file", files={"tiny.gguf": digest}, parameters={"num_predict": 2}, stream=True
            )
        )
        assert steps[-1].status == "success"
        assert client.show("from-file").parameters == "num_predict                    2"
        assert (client.generate("from-file", "the sky").eval_count or 0) <= 2
