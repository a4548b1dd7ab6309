"""The official openai client, unpatched, against a manager process: scripted and real engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from ftman.config import Paths
from tests.e2e.processes import REAL, manager_process
from tests.fakes.tiny_models import build_tiny
from tests.ftman.gateway.serving import install


def client_of(url: str) -> openai.OpenAI:
    """A client that asks for no proxy."""
    plain = httpx.Client(trust_env=False, timeout=120)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=plain, max_retries=0)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a manager with a scripted engine that says "Hello world"."""
    home = tmp_path_factory.mktemp("home")
    install(Paths(home, home / "models"))
    with manager_process(home) as manager:
        yield client_of(manager.url)


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], n=2
    )
    assert [choice.message.content for choice in whole.choices] == ["Hello world"] * 2
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 22
    assert whole.usage.prompt_tokens_details is not None
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "Hello world"
    assert chunks[-1].usage is not None
    assert chunks[0].choices[0].delta.role == "assistant"


def test_the_streaming_helper_accumulates(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], logprobs=True
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello world"


def test_completions(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt=["a", "b"], echo=True)
    assert [choice.text for choice in whole.choices] == ["aHello world", "bHello world"]
    stream = client.completions.create(model="tiny", prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello world"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny:latest"]
    assert client.models.retrieve("library/tiny:latest").owned_by == "library"


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("nope")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "x" * 600}], stream=True
        )
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="not built yet"):
        client.embeddings.create(model="tiny", input="x")
    with pytest.raises(openai.BadRequestError, match="not built yet"):
        client.responses.create(model="tiny", input="x")


def test_the_real_engine_scores_a_prompt(tmp_path: Path) -> None:
    folder = build_tiny("llama", tmp_path / "tiny-llama")
    with manager_process(tmp_path / "home", REAL) as manager:
        pulled = httpx.post(
            f"{manager.url}/api/pull", json={"model": folder.as_uri()}, timeout=60, trust_env=False
        )
        assert pulled.text.splitlines()[-1] == '{"status":"success"}'
        client = client_of(manager.url)
        (model,) = client.models.list()
        scored = client.completions.create(
            model=model.id, prompt="the sky is", max_tokens=1, logprobs=1, echo=True, temperature=0
        )
        (choice,) = scored.choices
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        first, *others = choice.logprobs.token_logprobs
        assert first is None
        assert all(math.isfinite(number) and number <= 0 for number in others)
        assert choice.logprobs.tokens is not None
        assert len(others) == len(choice.logprobs.tokens) - 1
        biased = client.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=3,
            logit_bias={"40": 100},
            temperature=0,
        )
        assert biased.choices[0].finish_reason == "length"
        content = biased.choices[0].message.content
        assert content
        assert len(set(content)) == 1
