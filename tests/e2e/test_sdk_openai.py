"""The official openai client, unpatched, against a manager process: scripted and real engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest

from ftman.config import Paths
from tests.e2e.processes import REAL, manager_process
from tests.fakes.tiny_models import build_tiny, tiny_vocabulary
from tests.ftman.gateway.serving import install

TEMPLATE = (
    "{{ if .Tools }}<tools>{{ range .Tools }}{{ .Function }}{{ end }}</tools>"
    'call as <tool_call>{"name": "x", "arguments": {}}</tool_call>{{ end }}'
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}"
    '{{ range .ToolCalls }}<tool_call>{"name": "{{ .Function.Name }}", '
    '"arguments": {{ .Function.Arguments }}}</tool_call>{{ end }}<|im_end|>\n{{ end }}'
    "<|im_start|>assistant\n"
)
USER: Any = [{"role": "user", "content": "Hi"}]


class Verdict(pydantic.BaseModel):
    """Something even a random model can say."""

    fine: bool
    grade: Literal["a", "b"]


# A random model writes blanks between JSON's parts for ever, where a grammar lets it.
BLANKS = {
    str(number): -100
    for number, token in enumerate(tiny_vocabulary()[0])
    if not token.strip("\u0120\u010a\u0109\u010d")
}
FLAT_TOOL: Any = {
    "type": "function",
    "name": "judge",
    "parameters": Verdict.model_json_schema() | {"additionalProperties": False},
    "strict": True,
}


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
    with pytest.raises(openai.BadRequestError, match="does not support tools"):
        client.responses.create(model="tiny", input="x", tools=[FLAT_TOOL])
    with pytest.raises(openai.NotFoundError) as gone:
        client.responses.create(model="tiny", input="x", previous_response_id="resp_0")
    assert gone.value.code == "previous_response_not_found"


def test_responses(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="tiny", input="Hi", instructions="Be brief.")
    assert whole.output_text == "Hello world"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 11
    with client.responses.stream(
        model="tiny", input="And?", previous_response_id=whole.id
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds.count("response.output_text.delta") == 11
    assert final.output_text == "Hello world"
    assert client.responses.retrieve(final.id).output_text == "Hello world"
    assert len(client.responses.input_items.list(final.id).data) == 3
    client.responses.delete(final.id)


def test_embeddings_are_the_same_in_both_forms(client: openai.OpenAI) -> None:
    coded = client.embeddings.create(model="tiny", input=["a", "b"])
    plain = client.embeddings.create(model="tiny", input=["a", "b"], encoding_format="float")
    for one, other in zip(coded.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-6)
    assert coded.data[0].embedding != coded.data[1].embedding


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a manager with the real engine; "able" is a random model with tools."""
    home = tmp_path_factory.mktemp("real")
    folder = build_tiny("llama", home / "tiny-llama")
    with manager_process(home / "home", REAL) as manager:
        pulled = httpx.post(
            f"{manager.url}/api/pull", json={"model": folder.as_uri()}, timeout=60, trust_env=False
        )
        assert pulled.text.splitlines()[-1] == '{"status":"success"}'
        client = client_of(manager.url)
        (model,) = client.models.list()
        made = httpx.post(
            f"{manager.url}/api/create",
            json={"model": "able", "from": model.id, "template": TEMPLATE},
            timeout=60,
            trust_env=False,
        )
        assert made.text.splitlines()[-1] == '{"status":"success"}', made.text
        yield client


def test_the_real_engine_scores_a_prompt(real: openai.OpenAI) -> None:
    scored = real.completions.create(
        model="able", prompt="the sky is", max_tokens=1, logprobs=1, echo=True, temperature=0
    )
    (choice,) = scored.choices
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    first, *others = choice.logprobs.token_logprobs
    assert first is None
    assert all(math.isfinite(number) and number <= 0 for number in others)
    assert choice.logprobs.tokens is not None
    assert len(others) == len(choice.logprobs.tokens) - 1
    biased = real.chat.completions.create(
        model="able",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=3,
        logit_bias={"40": 100},
        temperature=0,
    )
    assert biased.choices[0].finish_reason == "length"
    content = biased.choices[0].message.content
    assert content
    assert len(set(content)) == 1


def test_the_real_engine_calls_the_tool_it_has_to_call(real: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Verdict)
    asked: Any = {"model": "able", "messages": USER, "tools": [tool], "tool_choice": "required"}
    asked |= {"max_tokens": 100, "logit_bias": BLANKS, "reasoning_effort": "none", "seed": 5}
    whole = real.chat.completions.parse(**asked)
    (choice,) = whole.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    parsed = choice.message.tool_calls[0].function.parsed_arguments
    assert isinstance(parsed, Verdict)
    with real.chat.completions.stream(**asked) as stream:
        pieces = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert len(pieces) > 1
    assert final.message.tool_calls is not None
    assert final.message.tool_calls[0].function.parsed_arguments == parsed
    named = real.responses.create(
        model="able",
        input="Hi",
        tools=[FLAT_TOOL],
        tool_choice={"type": "function", "name": "judge"},
        max_output_tokens=100,
        reasoning={"effort": "none"},
        extra_body={"logit_bias": BLANKS},
    )
    (call,) = (item for item in named.output if item.type == "function_call")
    assert (call.name, call.status) == ("judge", "completed")
    Verdict.model_validate_json(call.arguments)


def test_the_real_engine_keeps_to_a_schema(real: openai.OpenAI) -> None:
    chat = real.chat.completions.parse(
        model="able",
        messages=USER,
        response_format=Verdict,
        max_tokens=100,
        logit_bias=BLANKS,
        reasoning_effort="none",
    )
    assert isinstance(chat.choices[0].message.parsed, Verdict)
    answer = real.responses.parse(
        model="able",
        input="Hi",
        text_format=Verdict,
        max_output_tokens=100,
        reasoning={"effort": "none"},
        extra_body={"logit_bias": BLANKS},
    )
    assert isinstance(answer.output_parsed, Verdict)
    with pytest.raises(openai.BadRequestError) as bad:
        real.chat.completions.create(
            model="able", messages=USER, extra_body={"guided_grammar": "start: nothing_here"}
        )
    assert bad.value.code == "bad_constraint"


def test_the_real_engine_embeds(real: openai.OpenAI) -> None:
    one, two = real.embeddings.create(model="able", input=["the sky", "a long text " * 9]).data
    assert sum(number * number for number in one.embedding) == pytest.approx(1, abs=1e-5)
    again = real.embeddings.create(model="able", input="the sky", dimensions=8).data[0]
    assert len(again.embedding) == 8
    assert one.embedding != two.embedding
    with pytest.raises(openai.BadRequestError) as long:
        real.embeddings.create(model="able", input="x" * 3000)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
