"""langchain-ollama: it streams everything, also `invoke`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from ollama import ResponseError
from pydantic import BaseModel

from tests.clients.suites.stage import (
    AFTER_THOUGHT,
    AFTER_TOOL,
    MODEL,
    REAL_MODEL,
    REAL_URL,
    SAYS,
    TALKER,
    THOUGHT,
    URL,
    VECTORS,
    needs_real,
    weather,
)


@tool
def get_weather(city: str) -> str:
    """The weather now."""
    return weather(city)


class Person(BaseModel):
    """A name and an age."""

    name: str
    age: int


def test_chat_and_stream() -> None:
    model = ChatOllama(model=TALKER, base_url=URL, temperature=0, validate_model_on_init=True)
    answer = model.invoke("Hi")
    assert answer.content == SAYS
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 11
    assert "".join(str(piece.content) for piece in model.stream("Hi")) == SAYS
    assert OllamaLLM(model=TALKER, base_url=URL).invoke("Hi") == SAYS


def test_a_tool_round_trip() -> None:
    model = ChatOllama(model=MODEL, base_url=URL, num_ctx=8192).bind_tools([get_weather])
    asked = HumanMessage("the WEATHER")
    answer = model.invoke([asked])
    (call,) = answer.tool_calls
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert model.invoke([asked, answer, result]).content == AFTER_TOOL


@pytest.mark.parametrize(
    ("method", "words"),
    [("json_schema", "PERSON"), ("json_mode", "PERSON"), ("function_calling", "NAMED")],
)
def test_structured_output(method: Any, words: str) -> None:
    model = ChatOllama(model=MODEL, base_url=URL).with_structured_output(Person, method=method)
    assert model.invoke(words) == Person(name="Ada", age=36)


def test_events_of_a_chain() -> None:
    async def texts() -> str:
        events = ChatOllama(model=TALKER, base_url=URL).astream("Hi")
        return "".join([str(piece.content) async for piece in events])

    assert asyncio.run(texts()) == SAYS


def test_thinking() -> None:
    answer = ChatOllama(model=MODEL, base_url=URL, reasoning=True).invoke("THINK")
    assert answer.additional_kwargs["reasoning_content"] == THOUGHT
    assert answer.content == AFTER_THOUGHT


def test_embeddings() -> None:
    model = OllamaEmbeddings(model=VECTORS, base_url=URL)
    assert [len(vector) for vector in model.embed_documents(["a", "b"])] == [8, 8]
    assert len(model.embed_query("a")) == 8


def test_errors() -> None:
    with pytest.raises(ResponseError, match="model 'nope' not found"):
        ChatOllama(model="nope", base_url=URL).invoke("Hi")
    with pytest.raises(ValueError, match="nope"):
        ChatOllama(model="nope", base_url=URL, validate_model_on_init=True)


@needs_real
def test_the_real_model_talks_and_keeps_to_a_schema() -> None:
    model = ChatOllama(model=REAL_MODEL, base_url=REAL_URL, temperature=0, num_predict=60)
    assert "Paris" in str(model.invoke("What is the capital of France?").content)
    answer = model.with_structured_output(Person).invoke("Ada is 36 years old. Name and age.")
    assert isinstance(answer, Person)
