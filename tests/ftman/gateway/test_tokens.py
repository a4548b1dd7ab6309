"""/tokenize, /detokenize, /tokenizer_info and the probes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ftman.gateway.serving import Manager, Tiny, managing

PREFIXES = pytest.mark.parametrize("prefix", ["", "/v1"])


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    """A manager with one model: it need not be named."""
    with managing(tmp_path_factory.mktemp("home"), models=(Tiny(),)) as manager:
        yield manager


@PREFIXES
def test_text_to_ids_and_back(single: Manager, prefix: str) -> None:
    body = {"prompt": "Hello b", "add_special_tokens": False}
    value = single.http.post(f"{prefix}/tokenize", json=body).json()
    assert value["count"] == len(value["tokens"]) <= 7
    assert value["max_model_len"] == 512
    back = single.http.post(f"{prefix}/detokenize", json={"tokens": value["tokens"]})
    assert back.json() == {"prompt": "Hello b"}


def test_the_texts_of_tokens(single: Manager) -> None:
    value = single.http.post("/tokenize", json={"prompt": "Hi", "return_token_strs": True}).json()
    assert value["token_strs"][-2:] == ["H", "i"]


def test_special_tokens_are_recognised(single: Manager) -> None:
    whole = single.http.post("/tokenize", json={"prompt": "<|im_start|>"}).json()
    assert whole["count"] == 1


def test_a_conversation_is_what_chat_would_be_charged(single: Manager) -> None:
    messages = [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}]
    value = single.http.post("/tokenize", json={"messages": messages}).json()
    body = {"model": "tiny", "messages": messages, "max_tokens": 1}
    usage = single.http.post("/v1/chat/completions", json=body).json()["usage"]
    assert value["count"] == usage["prompt_tokens"] == len(value["tokens"])


def test_a_last_assistant_message_is_continued(single: Manager) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    ids = single.http.post("/tokenize", json=body).json()["tokens"]
    text = single.http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert text.endswith("assistant\nHel")


@PREFIXES
def test_tokenizer_info(single: Manager, prefix: str) -> None:
    value = single.http.get(f"{prefix}/tokenizer_info").json()
    assert set(value) == {"bos_token", "eos_token", "pad_token", "chat_template"}
    assert value["eos_token"]
    assert "<|im_start|>" in value["chat_template"]


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("/tokenize", {}, "'prompt' is missing"),
        ("/tokenize", {"prompt": 5}, "'prompt' is missing"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": 1}, "must be of type boolean"),
        ("/tokenize", {"messages": [{"role": "x"}]}, "role"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x"}],
                       "add_generation_prompt": False}, "add_generation_prompt"),
        ("/detokenize", {}, "'tokens' is missing"),
        ("/detokenize", {"tokens": ["a"]}, "array of integers"),
        ("/detokenize", {"tokens": [-1]}, "token id -1"),
        ("/detokenize", {"tokens": [10**9]}, "token id 1000000000"),
        ("/detokenize", {"tokens": [1] * (2**20 + 1)}, "at most 1048576"),
    ],
)  # fmt: skip
def test_wrong_requests(single: Manager, path: str, body: Any, text: str) -> None:
    reply = single.http.post(path, json=body)
    assert reply.status_code == 400
    assert text in reply.json()["error"]["message"]


def test_where_several_models_are_installed_one_must_be_named(manager: Manager) -> None:
    body = {"prompt": "Hi"}
    refused = manager.http.post("/tokenize", json=body)
    assert refused.status_code == 400
    assert "models are installed: name one" in refused.json()["error"]["message"]
    assert manager.http.post("/tokenize", json=body | {"model": "tiny"}).status_code == 200
    assert manager.http.get("/tokenizer_info?model=tiny").status_code == 200
    missing = manager.http.get("/tokenizer_info?model=nope")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("path", ["/health", "/v1/health", "/api/hello"])
def test_probes(manager: Manager, path: str) -> None:
    assert manager.http.get(path).json() == {"status": "ok"}
    assert manager.http.head(path).status_code == 200
    assert manager.http.head(path).content == b""
