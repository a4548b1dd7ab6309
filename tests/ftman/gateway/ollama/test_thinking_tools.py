"""Thinking, tools and tool results on /api/chat and /api/generate, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ftman.gateway.ollama.models import NOW, WEATHER, NativeManager
from tests.ftman.gateway.serving import lines_of

ASK = [{"role": "user", "content": "weather in Paris?"}]
TOOLS = [WEATHER, NOW]


def chat(native: NativeManager, model: str, **extra: Any) -> Any:
    return native.post("chat", {"model": model, "messages": ASK, **extra})


def test_thinking_is_told_apart_and_on_by_default(native: NativeManager) -> None:
    lines = lines_of(chat(native, "thinker"))
    assert "".join(line["message"].get("thinking", "") for line in lines) == "Hmm, weather."
    assert "".join(line["message"]["content"] for line in lines) == "Sunny."
    whole = chat(native, "thinker", stream=False, think="high").json()["message"]
    assert whole == {"role": "assistant", "content": "Sunny.", "thinking": "Hmm, weather."}
    value = native.post("generate", {"model": "thinker", "prompt": "x", "stream": False}).json()
    assert (value["response"], value["thinking"]) == ("Sunny.", "Hmm, weather.")


def test_each_call_is_one_chunk_with_object_arguments_before_the_last(
    native: NativeManager,
) -> None:
    lines = lines_of(chat(native, "caller", tools=TOOLS))
    with_calls = [line for line in lines if line["message"].get("tool_calls")]
    assert [line["done"] for line in with_calls] == [False, False]
    calls = [call for line in with_calls for call in line["message"]["tool_calls"]]
    assert [call["function"]["name"] for call in calls] == ["get_weather", "now"]
    assert [call["function"]["index"] for call in calls] == [0, 1]
    assert json.dumps(calls[0]["function"]["arguments"]) == (
        '{"city": "Paris", "at": {"b": 1, "a": [2]}}'
    )
    assert calls[1]["function"]["arguments"] == {}
    assert all(call["id"].startswith("call_") for call in calls)
    assert {line["message"]["content"] for line in with_calls} == {""}
    assert lines[-1]["done_reason"] == "stop"
    assert lines[-1]["message"] == {"role": "assistant", "content": ""}


def test_a_whole_answer_holds_all_calls(native: NativeManager) -> None:
    message = chat(native, "caller", tools=TOOLS, stream=False).json()["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather", "now"]
    assert message["thinking"] == "Hmm, weather."


def test_without_tools_in_the_request_there_are_no_calls(native: NativeManager) -> None:
    message = chat(native, "caller", stream=False).json()["message"]
    assert "tool_calls" not in message
    assert "get_weather" in message["content"]


def test_logprobs_of_a_call_come_with_it(native: NativeManager) -> None:
    lines = lines_of(chat(native, "caller", tools=TOOLS, logprobs=True, top_logprobs=1))
    text = "".join(entry["token"] for line in lines for entry in line.get("logprobs", ()))
    assert "get_weather" in text
    assert "Hmm" in text


@pytest.mark.parametrize("by", [{"tool_name": "get_weather"}, {"tool_call_id": "call_abc"}, {}])
def test_results_are_taken_by_name_by_id_or_bare(native: NativeManager, by: dict[str, str]) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris", "b": 1}}}
    messages = [
        *ASK,
        {
            "role": "assistant",
            "content": "",
            "thinking": "T.",
            "tool_calls": [{"id": "call_abc"} | call],
        },
        {"role": "tool", "content": "18 C", **by},
    ]
    body = {"model": "caller", "messages": messages, "tools": TOOLS, "_debug_render_only": True}
    shown = native.post("chat", body).json()["_debug_info"]["rendered_template"]
    assert (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "b": 1}}'
        in shown.replace('"city":"Paris","b":1', '"city": "Paris", "b": 1')
    )
    assert "<|im_start|>tool\n18 C" in shown
    assert "^[A-Z]" in shown  # no keyword of the schema is lost
    body = {"model": "caller", "messages": messages, "tools": TOOLS, "stream": False}
    assert native.post("chat", body).status_code == 200


def test_generate_renders_only_when_asked_to(native: NativeManager) -> None:
    body = {"model": "go", "prompt": "Hi", "_debug_render_only": True, "system": "S."}
    value = native.post("generate", body).json()
    assert value["done"] is False
    assert value["response"] == ""
    assert value["_debug_info"]["rendered_template"].startswith("<|im_start|>system\nS.<|im_end|>")
