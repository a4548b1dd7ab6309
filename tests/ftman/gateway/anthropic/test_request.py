"""What the fields of /v1/messages become; each has its effect or its error."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from anthropic.types import ToolParam
from anthropic.types.message_create_params import (
    MessageCreateParamsBase,
    MessageCreateParamsNonStreaming,
)

from ftman.chat.types import ChatRequest, Constraint, Message, Options, ToolChoice
from ftman.gateway.access import AccessRules
from ftman.keys import KeyRing, key_of
from tests.ftman.gateway.scripted import ScriptedService, ask

USER = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "ls", "description": "List.", "input_schema": {"type": "object"}}
GIVEN = {"type": "function", "function": {
    "name": "ls", "description": "List.", "parameters": {"type": "object"}}}  # fmt: skip


def parse(service: ScriptedService | None = None, **fields: Any) -> ChatRequest:
    """The request that the service is given."""
    service = service or ScriptedService()
    body = {"model": "tiny", "max_tokens": 9, "messages": USER} | fields
    reply = ask(service, "/v1/messages", body)
    assert reply.status_code == 200, reply.text
    return service.asked[0]


def refused(**fields: Any) -> str:
    """The text of the error."""
    body = {"model": "tiny", "max_tokens": 9, "messages": USER} | fields
    reply = ask(ScriptedService(), "/v1/messages", body)
    assert reply.status_code == 400, reply.text
    value = reply.json()
    assert value["type"] == "error"
    assert value["error"]["type"] == "invalid_request_error"
    message: str = value["error"]["message"]
    return message


def warned(**fields: Any) -> list[str]:
    """What the answer says has no effect."""
    body = {"model": "tiny", "max_tokens": 9, "messages": USER} | fields
    found: list[str] = ask(ScriptedService(), "/v1/messages", body).json().get("warnings", [])
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_tokens": 7}, Options(num_predict=7)),
        ({"max_tokens": None}, Options()),
        ({"max_tokens": 0}, Options(num_predict=0)),
        ({"temperature": 0.25}, Options(num_predict=9, temperature=0.25)),
        ({"top_p": 0.5}, Options(num_predict=9, top_p=0.5)),
        ({"top_k": 5.0}, Options(num_predict=9, top_k=5)),
        ({"stop_sequences": ["a", ""]}, Options(num_predict=9, stop=("a",))),
        ({"stop_sequences": []}, Options(num_predict=9)),
    ],
)
def test_options(fields: dict[str, Any], expected: Options) -> None:
    defaults = Options(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, repeat_penalty=1.0)
    assert parse(**fields).options == expected.over(defaults)


def test_the_models_own_options_count_where_the_request_says_nothing() -> None:
    service = ScriptedService(own=Options(temperature=0.6, stop=("<end>",)))
    options = parse(service, stop_sequences=["x"]).options
    assert options.temperature == 0.6
    assert options.stop == ("x", "<end>")


@pytest.mark.parametrize(
    ("fields", "think"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, True),
        ({"thinking": {"type": "between_tools"}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"type": "disabled", "budget_tokens": 0}}, False),
        ({"thinking": {"type": "something_new"}}, None),
        ({"output_config": {"effort": "high"}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, False),
    ],
)
def test_thinking(fields: dict[str, Any], think: Any) -> None:
    assert parse(**fields).think == think


def test_a_model_that_cannot_think_may_answer_all_the_same() -> None:
    assert parse(thinking={"type": "adaptive"}).think_if_able


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_structured_output(place: str) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    fields = {place: {"format": wanted} if place == "output_config" else wanted}
    assert parse(**fields).constraint == Constraint("json_schema", '{"type": "object"}')


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be brief.", "Be brief."),
        ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
          {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=00;"},
          {"type": "text", "text": "b"}], "b"),
    ],
)  # fmt: skip
def test_system(system: Any, expected: str) -> None:
    assert parse(system=system).messages[0] == Message("system", expected)


def test_no_system_is_no_message() -> None:
    assert parse(system=[]).messages == (Message("user", "Hi"),)
    billing = [{"type": "text", "text": "x-anthropic-billing-header: x"}]
    assert parse(system=billing).messages == (Message("user", "Hi"),)


def test_a_system_message_is_the_same_as_text_and_as_a_list() -> None:
    block = {"type": "text", "text": "Skills", "cache_control": {"type": "ephemeral"}}
    listed = parse(messages=[*USER, {"role": "system", "content": [block]}])
    plain = parse(messages=[*USER, {"role": "system", "content": "Skills"}])
    assert listed.messages == plain.messages == (Message("user", "Hi"), Message("system", "Skills"))


def test_a_system_message_may_be_cleared_by_the_next_user() -> None:
    note = {"role": "system", "content": "now", "clear_at": "next_user_message"}
    assert len(parse(messages=[*USER, note]).messages) == 2
    assert len(parse(messages=[*USER, note, *USER]).messages) == 2
    assert len(parse(messages=[*USER, note | {"clear_at": "never"}, *USER]).messages) == 3


def test_a_tool_round() -> None:
    turns = [
        *USER,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "ft"},
            {"type": "redacted_thinking", "data": "xx"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_call_a", "name": "ls", "input": {"p": "/"}},
            {"type": "tool_use", "id": "toolu_b", "name": "pwd", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "text", "text": "before"},
            {"type": "tool_result", "tool_use_id": "toolu_call_a", "content": "etc",
             "cache_control": {"type": "ephemeral"}},
            {"type": "tool_result", "tool_use_id": "toolu_b", "is_error": True,
             "content": [{"type": "text", "text": "no"}]},
            {"type": "text", "text": "after"},
        ]},
    ]  # fmt: skip
    found = parse(messages=turns, tools=[TOOL]).messages
    calls = (
        {"id": "call_a", "function": {"name": "ls", "arguments": {"p": "/"}}},
        {"id": "b", "function": {"name": "pwd", "arguments": {}}},
    )
    assert found == (
        Message("user", "Hi"),
        Message("assistant", "I look.", thinking="hm", tool_calls=calls),
        Message("user", "before"),
        Message("tool", "etc", tool_name="ls", tool_call_id="call_a"),
        Message("tool", "Error: no", tool_name="pwd", tool_call_id="b"),
        Message("user", "after"),
    )


def test_a_result_without_content_is_an_empty_text() -> None:
    result = {"type": "tool_result", "tool_use_id": "x"}
    found = parse(messages=[{"role": "user", "content": [result]}]).messages
    assert found == (Message("tool", "", tool_call_id="x"),)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "text", "text": ""}, ""),
        ({"type": "document", "title": "T", "source": {"type": "text", "data": "d"}}, "T\nd"),
        ({"type": "document", "source": {"type": "content", "content": [
            {"type": "text", "text": "c"}]}}, "c"),
        ({"type": "document", "source": {"type": "content", "content": "c"}}, "c"),
        ({"type": "search_result", "title": "T", "source": "u", "content": [
            {"type": "text", "text": "c"}]}, "T\nu\nc"),
        ({"type": "web_search_tool_result", "tool_use_id": "1"},
         '{"type": "web_search_tool_result", "tool_use_id": "1"}'),
        ({"type": "something_new"}, ""),
    ],
)  # fmt: skip
def test_user_blocks(block: dict[str, Any], text: str) -> None:
    found = parse(messages=[{"role": "user", "content": [block]}]).messages
    assert found == (Message("user", text),)


def test_an_image_in_a_tool_result_is_noted_in_words() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [image]}
    (message,) = parse(messages=[{"role": "user", "content": [result]}]).messages
    assert "image was left out" in message.content


def test_a_last_assistant_message_is_a_prefill() -> None:
    found = parse(messages=[*USER, {"role": "assistant", "content": "The"}]).messages
    assert found[-1] == Message("assistant", "The")


def test_tools() -> None:
    typed = TOOL | {"type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}
    (tool,) = parse(tools=[typed]).tools
    assert (tool.name, tool.description, tool.parameters) == ("ls", "List.", {"type": "object"})
    assert tool.given == GIVEN
    assert tool.strict
    assert not tool.deferred


def test_a_tools_examples_are_part_of_its_description() -> None:
    (tool,) = parse(tools=[TOOL | {"input_examples": [{"p": "/"}]}]).tools
    assert tool.description == 'List.\nExamples of its input:\n{"p": "/"}'
    assert tool.given["function"]["description"] == tool.description


def test_a_schema_without_a_type_is_an_object() -> None:
    (tool,) = parse(tools=[{"name": "x", "input_schema": {"properties": {}}}]).tools
    assert tool.parameters == {"type": "object", "properties": {}}
    assert "description" not in tool.given["function"]


def test_hosted_tools_are_left_out_and_named() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    assert parse(tools=[hosted, TOOL]).tools[0].name == "ls"
    (told,) = warned(tools=[hosted, TOOL])
    assert "web_search" in told
    choice = {"type": "tool", "name": "web_search"}
    assert "only Anthropic's servers" in refused(tools=[hosted, TOOL], tool_choice=choice)


def test_deferred_tools_are_told_of_where_a_search_found_them() -> None:
    deferred = TOOL | {"defer_loading": True}
    placeholder = {"name": "DeferredToolPlaceholder", "input_schema": {}, "defer_loading": True}
    search = {"name": "ToolSearch", "input_schema": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [
        {"type": "tool_reference", "tool_name": "ls"},
        {"type": "tool_reference", "tool_name": "gone"}]}  # fmt: skip
    asked = parse(
        tools=[deferred, search, placeholder], messages=[{"role": "user", "content": [result]}]
    )
    assert [(tool.name, tool.deferred) for tool in asked.tools] == [
        ("ls", True),
        ("ToolSearch", False),
    ]
    shown, missing = asked.messages[0].content.split("\n")
    assert '"name": "ls"' in shown
    assert '"parameters"' in shown
    assert missing == "Tool gone is not available."


def test_tools_may_come_and_go_in_a_system_message() -> None:
    content = [
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "ls"}},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "pwd"}},
    ]
    asked = parse(tools=[TOOL], messages=[*USER, {"role": "system", "content": content}])
    shown, removed = asked.messages[1].content.split("\n")
    assert '"name": "ls"' in shown
    assert removed == "Tool pwd is no longer available."


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any"}, ToolChoice("required"), True),
        ({"type": "tool", "name": "ls"}, ToolChoice("named", "ls"), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_tool_choice(choice: dict[str, Any], expected: ToolChoice, parallel: bool) -> None:
    asked = parse(tools=[TOOL], tool_choice=choice)
    assert asked.tool_choice == expected
    assert asked.parallel_tool_calls == parallel


@pytest.mark.parametrize(
    "name",
    ["container", "context_management", "diagnostics", "inference_geo", "mcp_servers", "metadata",
     "safeguards", "service_tier", "speed", "user_profile_id", "workspace_id",
     "keep_alive", "num_ctx", "options", "response_format", "seed", "stop"],
)  # fmt: skip
def test_fields_without_effect_are_named_in_the_answer(name: str) -> None:
    assert warned(**{name: {"x": 1}}) == [f"no effect on this server: {name}"]
    assert warned(**{name: None}) == []


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
        ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget"),
    ],
)
def test_wishes_that_cannot_be_granted_are_named(fields: dict[str, Any], name: str) -> None:
    assert warned(**fields) == [f"no effect on this server: {name}"]


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_control": {"type": "ephemeral"}},
        {"tools": [], "stop_sequences": [], "system": [], "thinking": None, "metadata": {}},
        {"surprise": {"x": 1}, "betas": ["x"]},
        {"tools": [TOOL | {"eager_input_streaming": True, "surprise": 1}]},
    ],
)
def test_empty_null_and_unknown_fields_are_no_error_and_no_news(fields: dict[str, Any]) -> None:
    assert warned(**fields) == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": []}, "at least one message"),
        ({"messages": None}, "at least one message"),
        ({"messages": "Hi"}, "'messages' must be of type array, not string"),
        ({"messages": [{"role": "robot", "content": ""}]}, "'messages[0].role' must be one of"),
        ({"messages": [{"role": "user"}]}, "'messages[0].content' is missing"),
        ({"messages": [{"role": "user", "content": 5}]}, "'messages[0].content' must be"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "reads text only"),
        ({"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "base64"}}]}]}, "base64 source"),
        ({"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "x", "input": {}}]}]}, "without their tool_re"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "name' is miss"),
        ({"max_tokens": -1}, "'max_tokens' must be 0 or more"),
        ({"max_tokens": "9"}, "'max_tokens' must be of type integer"),
        ({"temperature": 3}, "'temperature' must be between 0 and 2"),
        ({"top_p": 2}, "'top_p' must be between 0 and 1"),
        ({"top_k": -2}, "'top_k' must be 0 or more"),
        ({"stop_sequences": [1]}, "'stop_sequences' must be of type string"),
        ({"stream": "yes"}, "'stream' must be of type boolean"),
        ({"system": 5}, "'system' must be of type array"),
        ({"thinking": {"budget_tokens": 5}}, "'thinking.type' is missing"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "budget_tokens' must be 1"),
        ({"output_config": {"effort": "huge"}}, "'output_config.effort' must be one of"),
        ({"output_config": {"format": {"type": "regex"}}}, "must be 'json_schema'"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "schema' is missing"),
        ({"tools": [{"input_schema": {}}]}, "'tools[0].name' is missing"),
        ({"tools": [{"name": "x"}]}, "'tools[0].input_schema' is missing"),
        ({"tool_choice": {"type": "any"}}, "needs tools"),
        ({"tool_choice": {"type": "maybe"}, "tools": [TOOL]}, "'tool_choice.type' must be one of"),
        ({"tool_choice": {"type": "tool", "name": "rm"}, "tools": [TOOL]}, "is not one of"),
        ({"model": ""}, "'model' is missing"),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(fields: dict[str, Any], text: str) -> None:
    assert text in refused(**fields)


DOCUMENTED: dict[str, Any] = {
    "model": "nope",
    "messages": [*USER, *USER],
    "max_tokens": 5,
    "container": "c",
    "diagnostics": {"previous_message_id": "m"},
    "inference_geo": "eu",
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "low"},
    "service_tier": "standard_only",
    "speed": "fast",
    "stop_sequences": ["x"],
    "stream": True,
    "system": "s",
    "thinking": {"type": "disabled"},
    "tool_choice": {"type": "none"},
    "tools": [],
    "user_profile_id": "p",
    "workspace_id": "w",
}
DOCUMENTED_OF_TOOLS: dict[str, Any] = {
    "input_schema": {"type": "object", "properties": {"p": {}}},
    "name": "pwd",
    "defer_loading": True,
    "description": "x",
    "input_examples": [{"p": 1}],
    "strict": True,
    "type": "bash_20250124",
}
# Prompt caching and streaming of arguments happen always, asked for or not.
ALWAYS_ON = {"cache_control", "eager_input_streaming"}
# Who may call a tool: only the model can, here.
ONE_VALUE = {"allowed_callers"}


def observed(**fields: Any) -> tuple[Any, ...]:
    """Everything that a request changes: what is asked of the service, and the kind of answer."""
    service = ScriptedService()
    body = {"model": "tiny", "max_tokens": 9, "messages": USER, "tools": [TOOL]} | fields
    reply = ask(service, "/v1/messages", body)
    asked = [dataclasses.replace(request, request_id="") for request in service.asked]
    kind = reply.headers["content-type"]
    told = reply.json().get("warnings") if kind == "application/json" else None
    return (reply.status_code, kind, told, asked)


def test_every_field_that_the_official_client_knows_has_an_effect_or_an_error() -> None:
    known = {*MessageCreateParamsNonStreaming.__annotations__}
    known |= {*MessageCreateParamsBase.__annotations__}
    assert set(DOCUMENTED) == known - ALWAYS_ON
    for name, value in DOCUMENTED.items():
        assert observed(**{name: value}) != observed(), name


def test_every_field_of_a_tool_has_an_effect_or_an_error() -> None:
    assert set(DOCUMENTED_OF_TOOLS) == set(ToolParam.__annotations__) - ALWAYS_ON - ONE_VALUE
    for name, value in DOCUMENTED_OF_TOOLS.items():
        tool = TOOL | {name: value}
        if name == "type":
            del tool["input_schema"]
        assert observed(tools=[tool]) != observed(), name


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"\xff"])
def test_bodies_that_are_no_object(data: bytes) -> None:
    reply = ask(ScriptedService(), "/v1/messages", data)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


def test_counting_reads_the_same_fields_and_answers_with_a_number() -> None:
    service = ScriptedService(num_prompt_tokens=7)
    body = {"model": "tiny", "messages": USER, "tools": [TOOL], "system": "x"}
    reply = ask(service, "/v1/messages/count_tokens?beta=true", body)
    assert reply.json() == {"input_tokens": 7}
    assert service.asked[0].messages == (Message("system", "x"), Message("user", "Hi"))
    assert service.asked[0].tools[0].name == "ls"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-api-key": "sk"}, 200),
        ({"authorization": "Bearer sk"}, 200),
        ({"authorization": "Bearer wrong", "x-api-key": "sk"}, 200),
        ({"x-api-key": "wrong"}, 401),
        ({}, 401),
    ],
)
def test_keys_in_either_header(headers: dict[str, str], status: int) -> None:
    body = {"model": "tiny", "messages": USER}
    rules = AccessRules(keys=KeyRing(given=[key_of("sk")]))
    reply = ask(ScriptedService(), "/v1/messages", body, headers=headers, rules=rules)
    assert reply.status_code == status
    if status == 401:
        assert reply.json()["error"]["type"] == "authentication_error"
