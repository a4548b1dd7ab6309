"""Chat completions over scripted events: tools, reasoning, formats; whole and streamed agree."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ftman.chat.types import Constraint, ToolCall, ToolChoice, Waiting
from ftman.errors import EngineDiedError
from tests.ftman.gateway.openai.scripted import (
    HELLO,
    Script,
    ScriptedService,
    ask,
    end,
    text,
    thinking,
    tool_call,
    with_sdk,
)
from tests.ftman.gateway.serving import frames_of

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA} | more}


TOOLS = [function("weather", description="Tells it"), function("time")]
PREFILLED = [*CHAT["messages"], {"role": "assistant", "content": "Hel"}]
UNANSWERED = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "time"}}],
}
CALLS: Script = (
    Waiting("prefill", 20, 20),
    *thinking("Let ", "me"),
    *text("Sure."),
    *tool_call(0, "weather", '{"ci', 'ty":"Oslo"}'),
    *tool_call(1, "time"),
    *end(),
)


def whole(service: ScriptedService, **more: Any) -> dict[str, Any]:
    reply = ask(service, PATH, CHAT | more)
    assert reply.status_code == 200, reply.text
    ChatCompletion.model_validate(reply.json())
    return dict(reply.json())


def chunks(service: ScriptedService, **more: Any) -> list[dict[str, Any]]:
    reply = ask(service, PATH, CHAT | more | {"stream": True})
    assert reply.status_code == 200, reply.text
    *found, done = frames_of(reply)
    assert done == "[DONE]"
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk)
    return found


def test_a_whole_answer_with_reasoning_text_and_calls() -> None:
    value = whole(ScriptedService(CALLS), tools=TOOLS)
    (choice,) = value["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Sure.",
        "refusal": None,
        "reasoning_content": "Let me",
        "reasoning": "Let me",
        "tool_calls": [
            {
                "id": "call_weather_0",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
            },
            {
                "id": "call_time_1",
                "type": "function",
                "function": {"name": "time", "arguments": "{}"},
            },
        ],
    }
    assert choice["finish_reason"] == "tool_calls"
    assert value["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 9,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 12},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


def test_streamed_calls_come_in_the_order_that_clients_need() -> None:
    found = chunks(ScriptedService(CALLS), tools=TOOLS)
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"reasoning_content": "Let ", "reasoning": "Let "}
    assert deltas[3] == {"content": "Sure."}
    assert deltas[4]["tool_calls"] == [
        {
            "index": 0,
            "id": "call_weather_0",
            "type": "function",
            "function": {"name": "weather", "arguments": ""},
        }
    ]
    assert deltas[5]["tool_calls"] == [{"index": 0, "function": {"arguments": '{"ci'}}]
    assert [d["tool_calls"][0]["index"] for d in deltas if "tool_calls" in d][-1] == 1
    assert deltas[-1] == {}
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in found[:-1])


def test_arguments_are_never_an_empty_text() -> None:
    message = whole(ScriptedService(CALLS), tools=TOOLS)["choices"][0]["message"]
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == [
        {"city": "Oslo"},
        {},
    ]
    joined: dict[int, str] = {}
    for chunk in chunks(ScriptedService(CALLS), tools=TOOLS):
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            joined[call["index"]] = joined.get(call["index"], "") + call["function"]["arguments"]
    assert {index: json.loads(value) for index, value in joined.items()} == {
        0: {"city": "Oslo"},
        1: {},
    }


def test_only_calls_means_no_content() -> None:
    value = whole(ScriptedService((*tool_call(0, "time"), *end())), tools=TOOLS)
    assert value["choices"][0]["message"]["content"] is None


def test_a_call_without_deltas_is_told_all_the_same() -> None:
    script = (ToolCall(0, "call_1", "time", {"a": [1, "ü"]}), *end())
    value = whole(ScriptedService(script), tools=TOOLS)
    (call,) = value["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"a":[1,"ü"]}'
    found = chunks(ScriptedService(script), tools=TOOLS)
    assert found[1]["choices"][0]["delta"]["tool_calls"][0]["id"] == "call_1"


def test_a_call_that_broke_off_is_no_reason_to_act() -> None:
    script = (*tool_call(0, "time", "{}")[:-1], *end())
    assert whole(ScriptedService(script), tools=TOOLS)["choices"][0]["finish_reason"] == "stop"
    assert chunks(ScriptedService(script))[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_call_cut_by_the_limit_ends_with_length() -> None:
    script = (*tool_call(0, "time", "{}")[:-1], *end("length"))
    assert whole(ScriptedService(script), tools=TOOLS)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("given", "mode", "name", "shown"),
    [
        (None, "auto", "", ["weather", "time"]),
        ("auto", "auto", "", ["weather", "time"]),
        ("none", "none", "", []),
        ("required", "required", "", ["weather", "time"]),
        ({"type": "function", "function": {"name": "time"}}, "named", "time", ["weather", "time"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "time"}]},
            },
            "auto",
            "",
            ["time"],
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "time"}}],
                },
            },
            "named",
            "time",
            ["time"],
        ),
    ],
)
def test_tool_choice_reaches_the_service(
    given: Any, mode: str, name: str, shown: list[str]
) -> None:
    service = ScriptedService()
    whole(service, tools=TOOLS, tool_choice=given, parallel_tool_calls=False)
    (request,) = service.asked
    assert request.tool_choice == ToolChoice(mode, name)  # type: ignore[arg-type]
    assert [tool.name for tool in request.tools] == shown
    assert request.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("more", "param", "text_"),
    [
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "none, auto or required"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "not in tools",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.name", "is missing"),
        ({"tools": TOOLS, "tool_choice": {"type": "magic"}}, "tool_choice.type", "not a choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name", "is missing"),
        ({"tools": [{"type": "custom", "custom": {"name": "sh"}}]}, "tools[0].type", "(sh)"),
        ({"tools": "x"}, "tools", "must be of type array"),
        ({"tools": TOOLS, "functions": [{"name": "x"}]}, "functions", "one of the two"),
        ({"tools": TOOLS, "function_call": "auto"}, "function_call", "needs functions"),
        ({"functions": [{"name": "x"}], "function_call": 5}, "function_call", "must be"),
        ({"response_format": {"type": "yaml"}}, "response_format", "unknown type"),
        (
            {"response_format": {"type": "json_object"}, "regex": "a+"},
            "regex",
            "cannot both bind",
        ),
        ({"grammar": "root ::= x"}, None, "GBNF"),
        ({"guided_json": "{"}, "guided_json", "no JSON schema"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "must be"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, None, "boolean"),
        ({"modalities": ["text", "audio"]}, "modalities", "text only"),
        ({"audio": {"voice": "x"}}, "audio", "not given out"),
        ({"continue_final_message": True}, "continue_final_message", "an assistant message"),
        ({"messages": PREFILLED, "continue_final_message": True, "add_generation_prompt": True},
         "continue_final_message", "cannot both be true"),
        ({"messages": [*PREFILLED[:1], UNANSWERED]}, "messages", "end with tool_calls"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string or array"),
        ({"structured_outputs": {"structural_tag": "x"}}, None, "structural_tag"),
        ({"add_generation_prompt": False}, None, "add_generation_prompt"),
        ({"chat_template": "{{ x }}"}, None, "chat_template"),
        ({"num_ctx": 0}, "num_ctx", "1 or more"),
        ({"keep_alive": "soon"}, "keep_alive", "duration"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_named(more: dict[str, Any], param: str | None, text_: str) -> None:
    reply = ask(ScriptedService(), PATH, CHAT | more)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert text_ in error["message"]
    if param is not None:
        assert error["param"] == param


@pytest.mark.parametrize(
    ("more", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            Constraint("json"),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "strict": True, "schema": {"type": "object"}},
                }
            },
            Constraint("json_schema", '{"type":"object"}'),
        ),
        (
            {"response_format": {"type": "json_schema", "schema": {"type": "object"}}},
            Constraint("json_schema", '{"type":"object"}'),
        ),
        ({"json_schema": {"type": "array"}}, Constraint("json_schema", '{"type":"array"}')),
        ({"guided_json": '{"type": "array"}'}, Constraint("json_schema", '{"type":"array"}')),
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"guided_regex": "a+"}, Constraint("regex", "a+")),
        ({"guided_choice": ["a", "b.c"]}, Constraint("regex", "a|b\\.c")),
        ({"guided_grammar": "start: X"}, Constraint("lark", "start: X")),
        ({"structured_outputs": {"choice": ["a"]}}, Constraint("regex", "a")),
        ({"structured_outputs": {"json_object": True}}, Constraint("json")),
    ],
)
def test_formats_become_constraints(more: dict[str, Any], constraint: Constraint | None) -> None:
    service = ScriptedService()
    whole(service, **more)
    assert service.asked[0].constraint == constraint


@pytest.mark.parametrize(
    ("more", "think"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, "minimal"),
        ({"reasoning_effort": "xhigh"}, "xhigh"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "low"),
        ({"reasoning": {"enabled": False}}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "enabled"}}, True),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}, False),
    ],
)
def test_ways_to_switch_reasoning(more: dict[str, Any], think: Any) -> None:
    service = ScriptedService()
    whole(service, **more)
    assert service.asked[0].think == think


def test_a_last_assistant_message_may_be_continued_by_name() -> None:
    more = {"continue_final_message": True, "add_generation_prompt": False}
    service = ScriptedService()
    assert "warnings" not in whole(service, messages=PREFILLED, **more)
    assert service.asked[0].messages[-1].content == "Hel"


def test_an_effort_is_a_wish_which_models_that_cannot_reason_may_ignore() -> None:
    service = ScriptedService()
    whole(service, reasoning_effort="high")
    assert service.asked[0].think_if_able is True


def test_reasoning_can_be_left_out() -> None:
    message = whole(ScriptedService(CALLS), include_reasoning=False)["choices"][0]["message"]
    assert "reasoning" not in message
    found = chunks(ScriptedService(CALLS), include_reasoning=False)
    assert not any("reasoning" in chunk["choices"][0]["delta"] for chunk in found)


def test_the_replaced_functions_still_work() -> None:
    script = (*tool_call(0, "weather", '{"city":', '"Oslo"}'), *end())
    service = ScriptedService(script)
    legacy = {"functions": [TOOLS[0]["function"]], "function_call": {"name": "weather"}}
    (choice,) = whole(service, **legacy)["choices"]
    assert choice["message"]["function_call"] == {
        "name": "weather",
        "arguments": '{"city":"Oslo"}',
    }
    assert choice["finish_reason"] == "function_call"
    assert service.asked[0].tool_choice == ToolChoice("named", "weather")
    found = chunks(service, **legacy)
    assert found[1]["choices"][0]["delta"]["function_call"] == {"name": "weather", "arguments": ""}
    assert found[-1]["choices"][0]["finish_reason"] == "function_call"


def test_warnings_stand_in_both_forms() -> None:
    service = ScriptedService((*text("x"), *end("stop", "cut")))
    more = {"user": "me", "tools": [{"type": "web_search"}], "store": True}
    told = whole(service, **more)["warnings"]
    assert "cut" in told
    assert "no effect on this server: user" in told
    assert any("web_search" in note for note in told)
    assert any("store" in note for note in told)
    assert chunks(service, **more)[-1]["warnings"] == told


def test_usage_in_every_chunk_on_request() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = chunks(ScriptedService(HELLO), stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in found] == [1, 1, 2, 9, 9]
    assert {chunk["usage"]["prompt_tokens"] for chunk in found} == {20}
    assert all("logprobs" not in c["choices"][0] for c in found if c["choices"])


def test_an_error_in_the_stream_is_a_frame_and_no_end() -> None:
    script = (*text("x"), EngineDiedError("the engine ended"))
    *_, last = frames_of(ask(ScriptedService(script), PATH, CHAT | {"stream": True}))
    assert last["error"]["type"] == "server_error"
    assert set(last["error"]) == {"message", "type", "param", "code"}


def test_silence_is_filled_with_comments() -> None:
    script = (0.05, *text("x"), *end())
    reply = ask(ScriptedService(script), PATH, CHAT | {"stream": True}, heartbeat_s=0.02)
    assert reply.text.startswith(": keep-alive\n\n")
    assert reply.text.endswith("data: [DONE]\n\n")


class City(pydantic.BaseModel):
    """For parse()."""

    city: str


def test_the_sdk_parses_calls_and_structured_answers() -> None:
    async def calls(client: openai.AsyncOpenAI) -> Any:
        return await client.chat.completions.parse(
            model="tiny", messages=CHAT["messages"], tools=[openai.pydantic_function_tool(City)]
        )

    script = (*tool_call(0, "City", '{"city":"Oslo"}'), *end())
    service = ScriptedService(script)
    (call,) = with_sdk(service, calls).choices[0].message.tool_calls
    assert call.function.parsed_arguments == City(city="Oslo")
    assert service.asked[0].tools[0].strict is True

    async def formatted(client: openai.AsyncOpenAI) -> Any:
        return await client.chat.completions.parse(
            model="tiny", messages=CHAT["messages"], response_format=City
        )

    service = ScriptedService((*text('{"city":', '"Oslo"}'), *end()))
    assert with_sdk(service, formatted).choices[0].message.parsed == City(city="Oslo")
    assert service.asked[0].constraint.kind == "json_schema"


def test_the_sdk_accumulates_streamed_calls() -> None:
    async def use(client: openai.AsyncOpenAI) -> Any:
        async with client.chat.completions.stream(
            model="tiny",
            messages=CHAT["messages"],
            tools=TOOLS,  # type: ignore[arg-type]
        ) as stream:
            done = [e async for e in stream if e.type == "tool_calls.function.arguments.done"]
            return done, await stream.get_final_completion()

    done, final = with_sdk(ScriptedService(CALLS), use)
    assert [event.name for event in done] == ["weather", "time"]
    first, second = final.choices[0].message.tool_calls
    assert json.loads(first.function.arguments) == {"city": "Oslo"}
    assert (first.id, second.id) == ("call_weather_0", "call_time_1")
    assert final.choices[0].finish_reason == "tool_calls"
