"""litellm: the same calls through each of its prefixes that can reach us."""

from __future__ import annotations

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches a price list at import

from typing import Any

import litellm
import pytest

from tests.clients.suites.stage import (
    AFTER_THOUGHT,
    AFTER_TOOL,
    FLAT,
    MODEL,
    PERSON_SCHEMA,
    REAL_MODEL,
    REAL_URL,
    SAYS,
    TALKER,
    THOUGHT,
    URL,
    VECTORS,
    needs_real,
)

CHATS = {
    "ollama_chat": URL,
    "openai": f"{URL}/v1",
    "hosted_vllm": f"{URL}/v1",
    "anthropic": URL,
}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather now", "parameters": FLAT},
}


@pytest.fixture(params=sorted(CHATS))
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def ask(prefix: str, messages: Any, name: str = MODEL, **options: Any) -> Any:
    """One chat call."""
    where = CHATS.get(prefix, URL)
    return litellm.completion(
        f"{prefix}/{name}",
        messages,
        api_base=where,
        api_key="none",
        num_retries=0,
        max_retries=0,
        **options,
    )


def test_chat_and_stream(prefix: str) -> None:
    answer = ask(prefix, said("Hi"), TALKER, max_tokens=50)
    assert answer.choices[0].message.content == SAYS
    assert answer.usage.completion_tokens == 11
    stream = ask(prefix, said("Hi"), TALKER, stream=True, max_tokens=50)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == SAYS


def test_a_tool_round_trip(prefix: str) -> None:
    messages = said("the WEATHER")
    message = ask(prefix, messages, tools=[TOOL]).choices[0].message
    (call,) = message.tool_calls
    assert call.function.arguments.replace(" ", "") == '{"city":"Paris"}'
    messages += [
        message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "18 C"},
    ]
    assert ask(prefix, messages, tools=[TOOL]).choices[0].message.content == AFTER_TOOL


@pytest.mark.parametrize("prefix", ["anthropic", "hosted_vllm", "openai"])
def test_streamed_calls(prefix: str) -> None:
    # not ollama_chat: there litellm drops the ids and the indices that came, and joins the calls
    chunks = list(ask(prefix, said("BOTH"), tools=[TOOL], stream=True))
    whole: Any = litellm.stream_chunk_builder(chunks)
    arguments = [c.function.arguments for c in whole.choices[0].message.tool_calls]
    assert [text.replace(" ", "") for text in arguments] == ['{"city":"Paris"}', '{"city":"Rome"}']


@pytest.mark.parametrize("prefix", ["ollama_chat", "openai", "hosted_vllm"])
def test_structured_output(prefix: str) -> None:
    schema = {"name": "person", "strict": True, "schema": PERSON_SCHEMA}
    kind = {"type": "json_schema", "json_schema": schema}
    answer = ask(prefix, said("PERSON"), response_format=kind)
    assert answer.choices[0].message.content == '{"name": "Ada", "age": 36}'
    loose = ask(prefix, said("PERSON"), response_format={"type": "json_object"})
    assert loose.choices[0].message.content == '{"name": "Ada", "age": 36}'


def test_thinking(prefix: str) -> None:
    asked: dict[str, Any] = {"reasoning_effort": "low"}
    if prefix == "anthropic":
        asked = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}
        asked["allowed_openai_params"] = ["thinking"]  # it knows no model of ours
    message = ask(prefix, said("THINK"), **asked).choices[0].message
    assert (message.reasoning_content, message.content) == (THOUGHT, AFTER_THOUGHT)


def test_generate_by_the_ollama_prefix() -> None:
    answer = ask("ollama", said("Hi"), TALKER)
    assert answer.choices[0].message.content == SAYS
    stream = ask("ollama", said("Hi"), TALKER, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == SAYS


def test_completions_responses_and_embeddings() -> None:
    text = litellm.text_completion(
        model=f"text-completion-openai/{TALKER}", prompt="Hi", api_base=f"{URL}/v1", api_key="none"
    )
    assert text.choices[0].text == SAYS
    response: Any = litellm.responses(
        model=f"openai/{MODEL}", input="Hi", api_base=f"{URL}/v1", api_key="none"
    )
    assert response.output[0].content[0].text == SAYS
    for prefix, base in (("openai", f"{URL}/v1"), ("ollama", URL)):
        found = litellm.embedding(
            f"{prefix}/{VECTORS}", input=["a", "b"], api_base=base, api_key="none"
        )
        assert [len(entry["embedding"]) for entry in found.data] == [8, 8]


def test_errors(prefix: str) -> None:
    with pytest.raises((litellm.NotFoundError, litellm.APIConnectionError), match="nope"):
        ask(prefix, said("Hi"), "nope")


def test_an_overlong_prompt_has_its_class() -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        ask("openai", said("x" * 3000), TALKER)


@needs_real
def test_the_real_model_talks() -> None:
    answer: Any = litellm.completion(
        f"ollama_chat/{REAL_MODEL}",
        said("What is the capital of France?"),
        api_base=REAL_URL,
        max_tokens=24,
    )
    assert "Paris" in answer.choices[0].message.content
