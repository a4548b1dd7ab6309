"""The official ollama package."""

from __future__ import annotations

import asyncio
import base64
import json
import os
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

PULLED = os.environ.get("CLIENTS_PULL", "")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
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


def test_logprobs_stop_strings_and_unloading(client: ollama.Client) -> None:
    answer = client.chat(TALKER, HI, logprobs=True, top_logprobs=2, options={"stop": [" wor"]})
    assert answer.message.content == "Hello"
    assert all(len(entry.top_logprobs or []) == 2 for entry in answer.logprobs or [])
    assert client.generate(TALKER, keep_alive=0).done_reason == "unload"


def test_models_are_made_copied_and_deleted(client: ollama.Client) -> None:
    steps = list(client.create("made", from_=TALKER, system="Be brief.", stream=True))
    assert steps[-1].status == "success"
    assert client.copy("made", "copied").status == "success"
    assert "Be brief." in (client.show("copied").modelfile or "")
    for name in ("made", "copied"):
        assert client.delete(name).status == "success"
    with pytest.raises(ollama.ResponseError, match="not found"):
        client.delete("made")


def test_images_are_refused_by_a_model_without_eyes(client: ollama.Client) -> None:
    message = {"role": "user", "content": "Hi", "images": [PIXEL]}
    with pytest.raises(ollama.ResponseError) as refused:
        client.chat(TALKER, [message])
    assert refused.value.status_code == 400
    assert "does not support vision" in refused.value.error


def test_the_async_client() -> None:
    async def talk() -> str:
        stream = await ollama.AsyncClient(host=URL).chat(TALKER, HI, stream=True)
        return "".join([piece.message.content or "" async for piece in stream])

    assert asyncio.run(talk()) == SAYS


@needs_real
def test_it_pulls_with_progress(real: ollama.Client) -> None:
    steps = list(real.pull(PULLED, stream=True))
    assert steps[-1].status == "success"


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
