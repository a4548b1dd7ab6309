"""The official openai package: chat, responses, embeddings."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pydantic
import pytest

from tests.clients.suites.stage import (
    AFTER_THOUGHT,
    AFTER_TOOL,
    FLAT,
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
)

TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": FLAT}}
FLAT_TOOL: Any = {"type": "function", "name": "get_weather", "parameters": FLAT, "strict": True}


class Person(pydantic.BaseModel):
    """A name and an age."""

    name: str
    age: int


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture
def client() -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)


@pytest.fixture
def real() -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{REAL_URL}/v1", api_key="none", max_retries=0, timeout=120)


def test_chat_and_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=TALKER, messages=said("Hi"))
    assert whole.choices[0].message.content == SAYS
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(
        model=TALKER, messages=said("Hi"), stream=True, stream_options=options
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == SAYS
    assert chunks[-1].usage is not None
    assert client.completions.create(model=TALKER, prompt=["a", "b"]).choices[1].text == SAYS


def test_a_tool_round_trip(client: openai.OpenAI) -> None:
    messages = said("the WEATHER")
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    (call,) = answer.choices[0].message.tool_calls or []
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.type == "function"
    assert call.function.arguments.replace(" ", "") == '{"city":"Paris"}'
    messages += [
        answer.choices[0].message.to_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "18 C"},
    ]
    last = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    assert last.choices[0].message.content == AFTER_TOOL


def test_streamed_parallel_calls(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=said("BOTH"), tools=[TOOL], tool_choice="auto"
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [c.function.arguments.replace(" ", "") for c in calls] == [
        '{"city":"Paris"}',
        '{"city":"Rome"}',
    ]
    assert len({c.id for c in calls}) == 2


def test_parsed_output(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=said("PERSON"), response_format=Person
    )
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)


def test_thinking(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=said("THINK"), reasoning_effort="low"
    )
    message: Any = answer.choices[0].message
    assert (message.reasoning, message.content) == (THOUGHT, AFTER_THOUGHT)


def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="the WEATHER", tools=[FLAT_TOOL])
    (call,) = [item for item in answer.output if item.type == "function_call"]
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "18 C"}]
    with client.responses.stream(
        model=MODEL, input=result, previous_response_id=answer.id, tools=[FLAT_TOOL]
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == AFTER_TOOL
    assert kinds[-1] == "response.completed"
    parsed = client.responses.parse(model=MODEL, input="PERSON", text_format=Person)
    assert parsed.output_parsed == Person(name="Ada", age=36)


def test_embeddings(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model=VECTORS, input=["a", "b"])
    assert [len(entry.embedding) for entry in found.data] == [8, 8]


def test_models_and_errors(client: openai.OpenAI) -> None:
    assert "caller:latest" in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=said("Hi"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=TALKER, messages=said("x" * 3000))
    assert long.value.code == "context_length_exceeded"


def test_logprobs_several_answers_and_stop(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=TALKER, messages=said("Hi"), n=2, logprobs=True, top_logprobs=2, stop=[" wor"], seed=1
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello", "Hello"]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content or [])


def test_images_are_refused_by_a_model_without_eyes(client: openai.OpenAI) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages: Any = [{"role": "user", "content": [image, {"type": "text", "text": "Hi"}]}]
    with pytest.raises(openai.BadRequestError, match="image"):
        client.chat.completions.create(model=TALKER, messages=messages)


def test_the_async_client_and_raw_answers(client: openai.OpenAI) -> None:
    async def talk() -> str:
        plain = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
        stream = await plain.responses.create(model=TALKER, input="Hi", stream=True)
        return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])

    assert asyncio.run(talk()) == SAYS
    raw = client.chat.completions.with_raw_response.create(model=TALKER, messages=said("Hi"))
    assert raw.parse().choices[0].message.content == SAYS


def test_stored_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=TALKER, input="Hi")
    assert client.responses.retrieve(answer.id).output_text == SAYS
    assert client.responses.input_items.list(answer.id).data
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


@needs_real
def test_the_real_model_talks_and_keeps_to_a_schema(real: openai.OpenAI) -> None:
    answer = real.chat.completions.create(
        model=REAL_MODEL, messages=said("What is the capital of France?"), max_tokens=24
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    schema: Any = {"name": "person", "strict": True, "schema": PERSON_SCHEMA}
    kept = real.chat.completions.create(
        model=REAL_MODEL,
        messages=said("Ada is 36 years old. Name and age as JSON."),
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=60,
    )
    assert Person.model_validate_json(kept.choices[0].message.content or "")


@needs_real
def test_the_real_model_must_call_the_tool(real: openai.OpenAI) -> None:
    with real.chat.completions.stream(
        model=REAL_TOOLS,
        messages=said("How is the weather in Paris?"),
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=60,
    ) as stream:
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or []
    assert call.function.name == "get_weather"
    assert "city" in call.function.arguments


@needs_real
def test_the_real_model_embeds(real: openai.OpenAI) -> None:
    found = real.embeddings.create(model=REAL_MODEL, input=["the sky", "is blue"])
    assert found.data[0].embedding != found.data[1].embedding
