"""The official anthropic package."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pydantic
import pytest

from tests.clients.suites.stage import (
    AFTER_THOUGHT,
    AFTER_TOOL,
    FLAT,
    MODEL,
    REAL_MODEL,
    REAL_TOOLS,
    REAL_URL,
    SAYS,
    TALKER,
    THOUGHT,
    URL,
    needs_real,
    weather,
)

TOOL: Any = {"name": "get_weather", "description": "The weather now", "input_schema": FLAT}


class Person(pydantic.BaseModel):
    """A name and an age."""

    name: str
    age: int


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture
def client() -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)


@pytest.fixture
def real() -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=REAL_URL, api_key="none", max_retries=0, timeout=120)


def test_chat_and_stream(client: anthropic.Anthropic) -> None:
    whole: Any = client.messages.create(model=TALKER, max_tokens=50, messages=said("Hi"))
    assert whole.content[0].text == SAYS
    with client.messages.stream(
        model=TALKER, max_tokens=50, system="Be brief.", messages=said("Hi")
    ) as stream:
        assert "".join(stream.text_stream) == SAYS
        assert stream.get_final_message().stop_reason == "end_turn"


def test_a_tool_round_trip(client: anthropic.Anthropic) -> None:
    messages = said("the WEATHER")
    with client.messages.stream(
        model=MODEL, max_tokens=100, messages=messages, tools=[TOOL]
    ) as stream:
        answer = stream.get_final_message()
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.input == {"city": "Paris"}
    assert answer.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "18 C"}
    messages += [
        {"role": "assistant", "content": [block.to_dict() for block in answer.content]},
        {"role": "user", "content": [result]},
    ]
    last: Any = client.messages.create(model=MODEL, max_tokens=100, messages=messages, tools=[TOOL])
    assert last.content[0].text == AFTER_TOOL


def test_thinking(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    answer: Any = client.messages.create(
        model=MODEL, max_tokens=2000, messages=said("THINK"), thinking=thinking
    )
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert (answer.content[0].thinking, answer.content[1].text) == (THOUGHT, AFTER_THOUGHT)


def test_the_tool_runner(client: anthropic.Anthropic) -> None:
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather now.

        Args:
          city: where
        """
        return weather(city)

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=100, messages=said("the WEATHER"), tools=[get_weather]
    )
    last: Any = runner.until_done()
    assert last.content[0].text == AFTER_TOOL


def test_parsed_output(client: anthropic.Anthropic) -> None:
    answer = client.messages.parse(
        model=MODEL, max_tokens=100, messages=said("PERSON"), output_format=Person
    )
    assert answer.parsed_output == Person(name="Ada", age=36)


def test_stop_sequences_and_images(client: anthropic.Anthropic) -> None:
    answer: Any = client.messages.create(
        model=TALKER, max_tokens=50, messages=said("Hi"), stop_sequences=[" wor"]
    )
    assert (answer.content[0].text, answer.stop_reason) == ("Hello", "stop_sequence")
    assert answer.stop_sequence == " wor"
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    messages: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(model=TALKER, max_tokens=5, messages=messages)


def test_the_async_client() -> None:
    async def talk() -> str:
        plain = anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0)
        async with plain.messages.stream(
            model=TALKER, max_tokens=50, messages=said("Hi")
        ) as stream:
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(talk()) == SAYS


def test_count_tokens_and_models(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model=MODEL, messages=said("Hi")).input_tokens > 1
    assert "caller:latest" in [model.id for model in client.models.list()]


def test_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="not_found_error"):
        client.messages.create(model="nope", max_tokens=5, messages=said("Hi"))
    with pytest.raises(anthropic.BadRequestError, match="invalid_request_error"):
        client.messages.create(model=TALKER, max_tokens=5, messages=said("x" * 3000))


@needs_real
def test_the_real_model_talks_and_must_call(real: anthropic.Anthropic) -> None:
    answer: Any = real.messages.create(
        model=REAL_MODEL, max_tokens=24, messages=said("What is the capital of France?")
    )
    assert "Paris" in answer.content[0].text
    called: Any = real.messages.create(
        model=REAL_TOOLS,
        max_tokens=60,
        messages=said("How is the weather in Paris?"),
        tools=[TOOL],
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
    )
    assert called.content[0].name == "get_weather"
    assert list(called.content[0].input) == ["city"]
