"""The official ollama package."""

from __future__ import annotations

import json
from collections.abc import Iterator

import ollama
import pytest

from tests.clients.suites.stage import (
    AFTER_THOUGHT,
    AFTER_TOOL,
    MODEL,
    PERSON_SCHEMA,
    REAL_MODEL,
    REAL_TOOLS,
    REAL_URL,
    SAYS,
    TALKER,
    THOUGHT,
    URL,
    VECTORS,
    needs_real,
    weather,
)

HI = [{"role": "user", "content": "Hi"}]


def get_weather(city: str) -> str:
    """The weather now.

    Args:
      city: where
    """
    return weather(city)


@pytest.fixture
def client() -> Iterator[ollama.Client]:
    client = ollama.Client(host=URL)
    yield client
    client._client.close()


@pytest.fixture
def real() -> Iterator[ollama.Client]:
    client = ollama.Client(host=REAL_URL, timeout=120)
    yield client
    client._client.close()


def test_chat_and_stream(client: ollama.Client) -> None:
    assert client.chat(TALKER, HI).message.content == SAYS
    pieces = list(client.chat(TALKER, HI, stream=True))
    assert "".join(piece.message.content or "" for piece in pieces) == SAYS
    assert pieces[-1].done_reason == "stop"
    assert client.generate(TALKER, "Hi").response == SAYS


def test_a_tool_round_trip(client: ollama.Client) -> None:
    messages = [{"role": "user", "content": "the WEATHER"}]
    answer = client.chat(MODEL, messages, tools=[get_weather])
    (call,) = answer.message.tool_calls or []
    result = get_weather(**call.function.arguments)
    messages += [answer.message, {"role": "tool", "tool_name": "get_weather", "content": result}]
    assert client.chat(MODEL, messages, tools=[get_weather]).message.content == AFTER_TOOL


def test_thinking(client: ollama.Client) -> None:
    answer = client.chat(MODEL, [{"role": "user", "content": "THINK"}], think=True)
    assert (answer.message.thinking, answer.message.content) == (THOUGHT, AFTER_THOUGHT)


def test_embeddings(client: ollama.Client) -> None:
    assert len(client.embed(VECTORS, ["a", "b"]).embeddings) == 2
    assert client.embeddings(VECTORS, "a").embedding


def test_listings(client: ollama.Client) -> None:
    assert {entry.model for entry in client.list().models} >= {"caller:latest", "talker:latest"}
    assert client.show(MODEL).capabilities == ["completion", "tools", "thinking"]
    assert all(entry.model for entry in client.ps().models)


def test_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as missing:
        client.chat("nope", HI)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="does not support tools"):
        client.chat(TALKER, HI, tools=[get_weather])


@needs_real
def test_the_real_model_talks(real: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 24}
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    whole = real.chat(REAL_MODEL, messages, options=options)
    assert "Paris" in (whole.message.content or "")
    pieces = real.chat(REAL_MODEL, messages, options=options, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content


@needs_real
def test_the_real_model_keeps_to_a_schema(real: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 60}
    messages = [{"role": "user", "content": "Ada is 36 years old. Name and age as JSON."}]
    answer = real.chat(REAL_MODEL, messages, format=PERSON_SCHEMA, options=options)
    assert isinstance(json.loads(answer.message.content or "")["age"], int)


@needs_real
def test_the_real_model_embeds(real: ollama.Client) -> None:
    vectors = real.embed(REAL_MODEL, ["the sky", "is blue"]).embeddings
    assert len(vectors) == 2
    assert vectors[0] != vectors[1]
    assert real.show(REAL_TOOLS).capabilities == ["completion", "tools"]
