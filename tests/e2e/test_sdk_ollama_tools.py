"""The official ollama client, unpatched: thinking, tools, format, embeddings, logprobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest

from tests.e2e.processes import REAL, manager_process
from tests.fakes.tiny_models import build_tiny
from tests.ftman.gateway.ollama.models import NativeManager, native_manager

HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeManager]:
    """A manager whose models think and call tools by script."""
    with native_manager(tmp_path_factory.mktemp("sdk")) as running:
        yield running


@pytest.fixture(scope="module")
def client(native: NativeManager) -> Iterator[ollama.Client]:
    client = ollama.Client(host=native.url, trust_env=False)
    yield client
    client._client.close()


def get_weather(city: str) -> str:
    """The weather now.

    Args:
      city: where
    """
    return f"18 C in {city}"


def now() -> str:
    """The time."""
    return "noon"


def test_a_tool_round_trip_with_functions_as_tools(client: ollama.Client) -> None:
    answer = client.chat("caller", HI, tools=[get_weather, now])
    calls = answer.message.tool_calls or []
    assert [call.function.name for call in calls] == ["get_weather", "now"]
    assert calls[0].function.arguments == {"city": "Paris", "at": {"b": 1, "a": [2]}}
    messages = [*HI, answer.message, {"role": "tool", "tool_name": "get_weather", "content": "18"}]
    again = list(client.chat("caller", messages, tools=[get_weather, now], stream=True))
    streamed = [c.function.name for piece in again for c in piece.message.tool_calls or []]
    assert streamed == ["get_weather", "now"]
    assert again[-1].done_reason == "stop"
    with pytest.raises(ollama.ResponseError, match="tiny:latest does not support tools"):
        client.chat("tiny", HI, tools=[now])


def test_thinking(client: ollama.Client) -> None:
    whole = client.chat("thinker", HI, think=True)
    assert (whole.message.thinking, whole.message.content) == ("Hmm, weather.", "Sunny.")
    pieces = list(client.chat("thinker", HI, think="high", stream=True))
    assert "".join(p.message.thinking or "" for p in pieces) == "Hmm, weather."
    generated = client.generate("thinker", "Hi")
    assert (generated.thinking, generated.response) == ("Hmm, weather.", "Sunny.")
    with pytest.raises(ollama.ResponseError, match='"tiny" does not support thinking'):
        client.chat("tiny", HI, think=True)


def test_format_reaches_the_engine(native: NativeManager, client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    client.chat("tiny", HI, format=schema)
    assert native.asked()["constraint"]["kind"] in ("json_schema", "lark")
    client.generate("tiny", "Hi", format="json")
    assert native.asked()["constraint"] is not None


def test_embeddings_and_logprobs(client: ollama.Client) -> None:
    found = client.embed("tiny", ["a", "b"], dimensions=4)
    assert [len(vector) for vector in found.embeddings] == [4, 4]
    assert found.prompt_eval_count == 2
    assert len(client.embeddings("tiny", "abc").embedding) == 8
    answer = client.chat("tiny", HI, logprobs=True, top_logprobs=1)
    assert answer.logprobs is not None
    assert "".join(entry.token for entry in answer.logprobs) == "Hello <b>"


def test_the_real_engine_keeps_to_a_schema_embeds_and_quantises(tmp_path: Path) -> None:
    folder = build_tiny("llama", tmp_path / "tiny-llama")
    with manager_process(tmp_path / "home", REAL) as manager:
        client = ollama.Client(host=manager.url, trust_env=False, timeout=120)
        client.pull(folder.as_uri())
        (model,) = client.list().models
        assert model.model is not None
        assert client.create("small", from_=model.model, quantize="q8_0").status == "success"
        details = client.show("small").details
        assert details is not None
        assert details.quantization_level == "Q8_0"
        schema = {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        }
        options = {"temperature": 0, "num_predict": 40}
        answer = client.chat("small", HI, format=schema, options=options)
        value = json.loads(answer.message.content or "")
        assert list(value) == ["ok"]
        assert isinstance(value["ok"], bool)
        one, two = client.embed("small", ["the sky", "is blue"]).embeddings
        assert len(one) == 64
        assert sum(x * x for x in one) == pytest.approx(1, abs=1e-4)
        assert list(one) != list(two)
        answer = client.generate(
            "small", "the", logprobs=True, top_logprobs=2, options={"num_predict": 2}
        )
        assert answer.logprobs is not None
        assert len(answer.logprobs) == answer.eval_count
        assert all(len(entry.top_logprobs or []) == 2 for entry in answer.logprobs)
