"""pydantic-ai through each of our three dialects: tools run, and the output is a type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.suites.stage import (
    AFTER_TOOL,
    MODEL,
    REAL_TOOLS,
    REAL_URL,
    SAYS,
    URL,
    needs_real,
    weather,
)

KINDS: dict[str, Callable[[str, str], Any]] = {
    "chat": lambda url, name: OpenAIChatModel(
        name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    ),
    "responses": lambda url, name: OpenAIResponsesModel(
        name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    ),
    "ollama": lambda url, name: OllamaModel(name, provider=OllamaProvider(base_url=f"{url}/v1")),
    "anthropic": lambda url, name: AnthropicModel(
        name, provider=AnthropicProvider(base_url=url, api_key="none")
    ),
}


class Person(BaseModel):
    """A name and an age."""

    name: str
    age: int


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_chat_and_stream(kind: str) -> None:
    agent = Agent(KINDS[kind](URL, MODEL))
    result = agent.run_sync("Hi")
    assert result.output == SAYS
    assert result.usage.output_tokens == 11
    assert agent.run_sync("again", message_history=result.all_messages()).output == SAYS

    async def streamed() -> list[str]:
        async with agent.run_stream("Hi") as run:
            return [piece async for piece in run.stream_text(delta=True)]

    assert "".join(asyncio.run(streamed())) == SAYS


def test_a_tool_round_trip(kind: str) -> None:
    agent = Agent(KINDS[kind](URL, MODEL))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather now."""
        return weather(city)

    assert agent.run_sync("the WEATHER").output == AFTER_TOOL


def test_structured_output_by_a_forced_tool(kind: str) -> None:
    agent = Agent(KINDS[kind](URL, MODEL), output_type=Person)
    assert agent.run_sync("FINAL").output == Person(name="Ada", age=36)


def test_structured_output_by_a_schema() -> None:
    agent = Agent(KINDS["chat"](URL, MODEL), output_type=NativeOutput(Person))
    assert agent.run_sync("PERSON").output == Person(name="Ada", age=36)


def test_errors(kind: str) -> None:
    with pytest.raises(ModelHTTPError, match="nope") as missing:
        Agent(KINDS[kind](URL, "nope")).run_sync("Hi")
    assert missing.value.status_code == 404


@needs_real
def test_the_real_model_must_call(kind: str) -> None:
    settings: Any = {"max_tokens": 100, "temperature": 0}
    agent = Agent(KINDS[kind](REAL_URL, REAL_TOOLS), output_type=Person, model_settings=settings)
    assert isinstance(agent.run_sync("Ada is 36 years old.").output.age, int)
