"""/v1/responses over scripted events: order and numbers of events, items, state, errors."""

from __future__ import annotations

from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response

from ftman.chat.types import Constraint, Message, ToolChoice, Waiting
from ftman.errors import EngineDiedError, UsageError
from ftman.gateway.openai.responses.items import seal
from ftman.service.prompts import ContextLengthError
from tests.ftman.gateway.openai.scripted import (
    HELLO,
    Script,
    ScriptedService,
    ask,
    end,
    events_of,
    text,
    thinking,
    tool_call,
    with_sdk,
)

PATH = "/v1/responses"
ASKED: dict[str, Any] = {"model": "tiny", "input": "Hi"}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "weather", "parameters": None, "strict": None},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Handles agents.",
        "tools": [
            {"type": "function", "name": "close", "parameters": {"type": "object"}},
            {"type": "function", "name": "weather", "description": "Theirs"},
        ],
    },
    {"type": "custom", "name": "patch", "description": "Applies a patch"},
    {"type": "web_search", "external_web_access": True},
]
EVERYTHING: Script = (
    Waiting("prefill", 20, 20),
    *thinking("Let ", "me"),
    *text("Su", "re."),
    *tool_call(0, "agents__close", '{"id":', "7}"),
    *tool_call(1, "patch", '{"input":"*** \\n', 'x"}'),
    *end(),
)


def whole(service: ScriptedService, **more: Any) -> dict[str, Any]:
    reply = ask(service, PATH, ASKED | more)
    assert reply.status_code == 200, reply.text
    Response.model_validate(reply.json())
    return dict(reply.json())


def streamed(service: ScriptedService, **more: Any) -> list[dict[str, Any]]:
    reply = ask(service, PATH, ASKED | more | {"stream": True})
    assert reply.status_code == 200, reply.text
    return events_of(reply)


def messages_of(items: Any, **more: Any) -> tuple[Message, ...]:
    service = ScriptedService()
    whole(service, input=items, **more)
    return tuple(service.asked[0].messages)


def test_the_whole_stream_in_order() -> None:
    found = streamed(ScriptedService(EVERYTHING), tools=TOOLS)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    assert found[0]["response"]["output"] == []
    assert found[0]["response"]["status"] == "in_progress"
    indexes = [event["output_index"] for event in found if "output_index" in event]
    assert indexes == sorted(indexes)
    final = found[-1]["response"]
    done = [event["item"] for event in found if event["type"].endswith("output_item.done")]
    added = [event["item"] for event in found if event["type"].endswith("output_item.added")]
    assert final["output"] == done
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert {event["response"]["id"] for event in found if "response" in event} == {final["id"]}


def test_items_of_an_answer() -> None:
    value = whole(ScriptedService(EVERYTHING), tools=TOOLS)
    reasoning, message, call, custom = value["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me"}]
    assert reasoning["summary"] == []
    assert "encrypted_content" not in reasoning
    assert message["content"] == [
        {"type": "output_text", "text": "Sure.", "annotations": [], "logprobs": []}
    ]
    assert (call["name"], call["namespace"], call["arguments"]) == ("close", "agents", '{"id":7}')
    assert call["call_id"] == "call_agents__close_0"
    assert call["status"] == "completed"
    assert (custom["type"], custom["name"]) == ("custom_tool_call", "patch")
    assert custom["input"] == "*** \nx"
    assert value["status"] == "completed"
    assert value["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 12, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 29,
    }


def test_streamed_and_whole_are_the_same_response() -> None:
    def bare(response: dict[str, Any]) -> dict[str, Any]:
        items = [{k: v for k, v in item.items() if k != "id"} for item in response["output"]]
        return response | {"id": "", "output": items}

    one = whole(ScriptedService(EVERYTHING), tools=TOOLS)
    other = streamed(ScriptedService(EVERYTHING), tools=TOOLS)[-1]["response"]
    assert bare(one) == bare(other)


def test_ids_never_come_again() -> None:
    ids = [whole(ScriptedService())["id"] for _ in range(3)]
    assert len(set(ids)) == 3


def test_tools_as_the_model_gets_them() -> None:
    service = ScriptedService()
    value = whole(service, tools=TOOLS, tool_choice={"type": "custom", "name": "patch"})
    (request,) = service.asked
    assert [tool.name for tool in request.tools] == [
        "weather",
        "agents__close",
        "agents__weather",
        "patch",
    ]
    assert request.tools[0].parameters == {"type": "object", "properties": {}}
    assert request.tools[1].description == "Handles agents."
    assert request.tools[3].parameters["required"] == ["input"]
    assert request.tool_choice == ToolChoice("named", "patch")
    assert value["tools"] == TOOLS
    assert any("web_search is not available" in note for note in value["warnings"])
    hosted = whole(ScriptedService(), tools=TOOLS, tool_choice={"type": "web_search"})
    assert any("web_search" in note for note in hosted["warnings"])


@pytest.mark.parametrize("cut", ["length", "stop"])
def test_the_last_event_says_how_it_ended(cut: str) -> None:
    last = streamed(ScriptedService((*text("x"), *end(cut))))[-1]
    if cut == "stop":
        assert last["type"] == "response.completed"
        assert last["response"]["incomplete_details"] is None
        return
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_a_call_that_broke_off_is_incomplete() -> None:
    broken = tool_call(0, "weather", "{}")[:-1]
    script = (*broken, *tool_call(1, "weather", "{}"), *end())
    first, second = whole(ScriptedService(script), tools=TOOLS)["output"]
    assert (first["status"], second["status"]) == ("incomplete", "completed")
    (only,) = whole(ScriptedService((*broken, *end())), tools=TOOLS)["output"]
    assert only["status"] == "incomplete"


def test_an_empty_answer_is_an_empty_message() -> None:
    for script in (end(), [*thinking("hm"), *end()]):
        assert whole(ScriptedService(script))["output"][-1]["content"][0]["text"] == ""


def test_a_failure_before_the_first_event_has_its_status() -> None:
    service = ScriptedService([ContextLengthError(5000, 4096)])
    for stream in (False, True):
        reply = ask(service, PATH, ASKED | {"stream": stream})
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert (error["param"], error["n_prompt_tokens"], error["n_ctx"]) == ("input", 5000, 4096)
        assert "your input resulted in 5000 tokens" in error["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineDiedError("it died"), "server_error"),
        (ContextLengthError(5000, 4096), "context_length_exceeded"),
        (UsageError("no such grammar"), "invalid_prompt"),
    ],
)
def test_a_failure_in_the_stream_is_its_last_event(error: Exception, code: str) -> None:
    *_, done, last = streamed(ScriptedService([*text("x"), error]))
    assert done["type"] == "response.output_item.done"
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == code
    assert last["response"]["error"]["message"]
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_silence_is_filled_with_events_that_count() -> None:
    script = (0.05, *text("x"), 0.05, *end())
    reply = ask(ScriptedService(script), PATH, ASKED | {"stream": True}, heartbeat_s=0.02)
    found = events_of(reply)
    kinds = [event["type"].removeprefix("response.") for event in found]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds.count("created") == 1
    assert kinds.count("in_progress") >= 3
    assert kinds[-1] == "completed"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))


def test_sealed_reasoning_is_given_on_request_and_read_again() -> None:
    value = whole(
        ScriptedService((*thinking("Let me"), *text("x"), *end())),
        include=["reasoning.encrypted_content"],
    )
    item = value["output"][0]
    assert item["encrypted_content"] == seal("Let me")
    only_sealed = item | {"content": None, "summary": [{"type": "summary_text", "text": "No"}]}
    (turn, _) = messages_of([only_sealed, {"role": "user", "content": "Go on"}])
    assert turn.thinking == "Let me"


@pytest.mark.parametrize(
    "item",
    [
        {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}], "content": None},
        {"type": "reasoning", "summary": [], "encrypted_content": seal("Hm")},
    ],
)
def test_reasoning_comes_back_in_three_forms(item: dict[str, Any]) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "5C"}
    turns = messages_of([{"role": "user", "content": "?"}, item, call, result], tools=TOOLS)
    assert turns[1].thinking == "Hm"
    assert turns[1].tool_calls[0]["function"] == {"name": "weather", "arguments": "{}"}


def test_items_that_belong_to_one_turn_become_one() -> None:
    turns = messages_of(
        [
            {"type": "message", "role": "developer", "content": "One"},
            {"role": "system", "content": [{"type": "input_text", "text": "Two"}]},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "A"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Sure."}]},
            {"type": "function_call", "call_id": "1", "name": "close", "namespace": "agents",
             "arguments": '{"id": 7}'},
            {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "***"},
            {"role": "user", "content": "Between"},
            {"type": "function_call_output", "call_id": "1",
             "output": [{"type": "input_text", "text": "5"}, {"type": "input_image"}]},
            {"type": "custom_tool_call_output", "call_id": "2", "output": "ok"},
            {"type": "web_search_call", "id": "ws_1"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "B"}]},
            {"type": "message", "role": "assistant", "content": "Done", "phase": "final"},
        ],
        tools=TOOLS,
        instructions="Zero",
    )  # fmt: skip
    assert turns[0] == Message("system", "Zero\n\nOne\n\nTwo")
    assert turns[1] == Message("user", "Hi")
    assert (turns[2].content, turns[2].thinking) == ("Sure.", "A")
    assert [call["function"] for call in turns[2].tool_calls] == [
        {"name": "agents__close", "arguments": '{"id": 7}'},
        {"name": "patch", "arguments": {"input": "***"}},
    ]
    assert (turns[3].tool_call_id, turns[3].content[:1]) == ("1", "5")
    assert "an image was here" in turns[3].content
    assert turns[4] == Message("tool", "ok", tool_call_id="2")
    assert turns[5] == Message("user", "Between")
    assert turns[6] == Message("assistant", "Done", "B")


def test_left_out_items_are_said() -> None:
    items = [{"role": "user", "content": "x"}, {"type": "web_search_call", "id": "ws_1"}]
    assert any(
        "web_search_call" in note for note in whole(ScriptedService(), input=items)["warnings"]
    )


@pytest.mark.parametrize(
    ("more", "param", "told"),
    [
        ({"input": None}, "input", "is empty"),
        ({"input": []}, "input", "is empty"),
        ({"input": [{"x": 1}]}, "input[0].type", "is missing"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "must be one of"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "reads text only",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
            "not read",
        ),
        ({"input": [{"type": "item_reference", "id": "no"}]}, "input[0].id", "stored"),
        ({"background": True}, None, "background"),
        ({"conversation": "conv_1"}, None, "previous_response_id"),
        ({"prompt": {"id": "x"}}, None, "prompt"),
        ({"n": 2}, "n", "one answer"),
        ({"truncation": "some"}, "truncation", "auto or disabled"),
        ({"max_output_tokens": 0}, "max_output_tokens", "1 or more"),
        ({"top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format", "unknown type"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "text", "another field"),
        (
            {"text": {"format": {"type": "json_schema", "json_schema": {"schema": {}}}}},
            "text.format.schema",
            "is missing",
        ),
        ({"metadata": {"a": 1}}, "metadata", "texts"),
        ({"reasoning": {"effort": "huge"}}, "reasoning_effort", "must be"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name", "is missing"),
    ],
)
def test_what_cannot_be_done_is_named(more: dict[str, Any], param: str | None, told: str) -> None:
    reply = ask(ScriptedService(), PATH, ASKED | more)
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (400, "invalid_request_error")
    assert told in error["message"]
    if param is not None:
        assert error["param"] == param


def test_a_response_goes_on_from_the_one_before() -> None:
    service = ScriptedService()
    first = whole(service, instructions="Be brief.")
    second = whole(service, input="And?", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert service.asked[1].messages == (
        Message("user", "Hi"),
        Message("assistant", "Hello"),
        Message("user", "And?"),
    )
    third = whole(
        service,
        input=[
            {"type": "item_reference", "id": first["output"][0]["id"]},
            {"role": "user", "content": "!"},
        ],
    )
    assert service.asked[2].messages == (Message("assistant", "Hello"), Message("user", "!"))
    listed = ask(service, f"{PATH}/{second['id']}/input_items?order=asc", method="GET").json()
    assert [item["role"] for item in listed["data"]] == ["user", "assistant", "user"]
    assert third["status"] == "completed"


def test_store_false_is_honoured() -> None:
    service = ScriptedService()
    value = whole(service, store=False)
    assert value["store"] is False
    reply = ask(service, f"{PATH}/{value['id']}", method="GET")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")
    reply = ask(service, PATH, ASKED | {"previous_response_id": value["id"]})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, "previous_response_not_found")
    assert error["param"] == "previous_response_id"


def test_stored_responses_are_read_listed_and_deleted() -> None:
    service = ScriptedService()
    for prefix in ("/v1", ""):
        path = f"{prefix}/responses"
        value = streamed(service)[-1]["response"]
        place = f"{path}/{value['id']}"
        assert ask(service, place, method="GET").json() == value
        listed = ask(service, f"{place}/input_items", method="GET").json()
        assert listed["data"][0]["content"] == [{"type": "input_text", "text": "Hi"}]
        assert (listed["first_id"], listed["has_more"]) == (listed["data"][0]["id"], False)
        for query in ("limit=0", "limit=x", "after=no"):
            reply = ask(service, f"{place}/input_items?{query}", method="GET")
            assert reply.status_code == 400
        assert ask(service, f"{place}?stream=true", method="GET").status_code == 400
        assert ask(service, f"{place}/cancel").status_code == 400
        assert ask(service, f"{place}/nonsense", method="GET").status_code == 404
        assert ask(service, place, method="DELETE").json()["deleted"] is True
        assert ask(service, place, method="DELETE").status_code == 404
        assert ask(service, f"{place}/cancel").status_code == 404


def test_pages_of_input_items() -> None:
    service = ScriptedService()
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    place = f"{PATH}/{whole(service, input=items)['id']}/input_items"
    first = ask(service, f"{place}?limit=3", method="GET").json()
    rest = ask(service, f"{place}?limit=3&after={first['last_id']}", method="GET").json()
    shown = [item["content"][0]["text"] for item in first["data"] + rest["data"]]
    assert shown == ["4", "3", "2", "1", "0"]
    assert (first["has_more"], rest["has_more"]) == (True, False)


def test_input_tokens_are_those_of_the_prompt() -> None:
    service = ScriptedService()
    reply = ask(service, f"{PATH}/input_tokens", ASKED | {"instructions": "abc"})
    assert reply.json() == {"object": "response.input_tokens", "input_tokens": 5}


class City(pydantic.BaseModel):
    """For parse()."""

    city: str


def test_the_sdk_accumulates_a_stream() -> None:
    async def use(client: openai.AsyncOpenAI) -> Any:
        async with client.responses.stream(model="tiny", input="Hi", tools=TOOLS) as stream:  # type: ignore[arg-type]
            kinds = [event.type async for event in stream]
            return kinds, await stream.get_final_response()

    kinds, final = with_sdk(ScriptedService(EVERYTHING), use)
    assert kinds[-1] == "response.completed"
    assert final.output_text == "Sure."
    assert final.output[2].arguments == '{"id":7}'


def test_the_sdk_parses_a_format() -> None:
    async def use(client: openai.AsyncOpenAI) -> Any:
        return await client.responses.parse(model="tiny", input="Hi", text_format=City)

    service = ScriptedService((*text('{"city":"Oslo"}'), *end()))
    assert with_sdk(service, use).output_parsed == City(city="Oslo")
    constraint = service.asked[0].constraint
    assert isinstance(constraint, Constraint)
    assert constraint.kind == "json_schema"


def test_the_sdk_reads_counts_and_deletes() -> None:
    service = ScriptedService(HELLO)

    async def use(client: openai.AsyncOpenAI) -> None:
        made = await client.responses.create(model="tiny", input="Hi", metadata={"a": "b"})
        assert made.metadata == {"a": "b"}
        assert (await client.responses.retrieve(made.id)).output_text == "Hello"
        items = await client.responses.input_items.list(made.id)
        assert [item.type for item in items.data] == ["message"]
        counted = await client.responses.input_tokens.count(model="tiny", input="Hi")
        assert counted.input_tokens == 2
        await client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(made.id)

    with_sdk(service, use)


def test_what_was_asked_for_stands_in_the_response() -> None:
    asked = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "prompt_cache_key": "k"}
    value = whole(ScriptedService(), **asked, reasoning={"max_tokens": 9})
    assert {name: value[name] for name in asked} == asked
    assert value["max_tool_calls"] is value["safety_identifier"] is None
    assert "no effect on this server: prompt_cache_key, reasoning.max_tokens" in value["warnings"]
