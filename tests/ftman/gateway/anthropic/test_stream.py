"""Events of /v1/messages: their order, the blocks, the end, signs of life, errors inside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftman.chat.types import (
    ChatEvent,
    Finish,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    Waiting,
)
from ftman.errors import EngineDiedError
from tests.ftman.gateway.scripted import HELLO, USED, ScriptedService, ask, events_of

BODY: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": "Hi"}],
}
CALLS: tuple[ChatEvent, ...] = (
    ThinkingDelta("hm"),
    ThinkingDelta("m"),
    TextDelta("I look."),
    ToolCallDelta(0, "call_a", "ls"),
    ToolCallDelta(0, arguments='{"p":'),
    ToolCallDelta(0, arguments='"/"}'),
    ToolCall(0, "call_a", "ls", {"p": "/"}),
    ToolCallDelta(1, "call_b", "pwd"),
    ToolCallDelta(1, arguments="{}"),
    ToolCall(1, "call_b", "pwd", {}),
    Finish("stop", Usage(9, 0, 8, thinking_tokens=2)),
)
BLOCKS = [
    {"type": "thinking", "thinking": "hmm", "signature": "ft"},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "toolu_call_a", "name": "ls", "input": {"p": "/"}},
    {"type": "tool_use", "id": "toolu_call_b", "name": "pwd", "input": {}},
]


def stream(*events: Any, heartbeat_s: float = 5.0, **changes: Any) -> list[dict[str, Any]]:
    service = ScriptedService(events)
    body = BODY | {"stream": True} | changes
    return events_of(ask(service, "/v1/messages?beta=true", body, heartbeat_s=heartbeat_s))


def whole(*events: Any, **changes: Any) -> dict[str, Any]:
    reply = ask(ScriptedService(events), "/v1/messages", BODY | changes)
    assert reply.status_code == 200, reply.text
    value: dict[str, Any] = reply.json()
    return value


def blocks_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a client makes of the events; blocks must be numbered, ordered and apart."""
    blocks: list[dict[str, Any]] = []
    arguments = ""
    is_open = False
    for event in events:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            is_open, arguments = True, ""
        elif kind == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                arguments += delta["partial_json"]
            else:
                name = delta["type"].removesuffix("_delta")
                blocks[-1][name] += delta[name]
        elif kind == "content_block_stop":
            assert is_open
            assert event["index"] == len(blocks) - 1
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                assert blocks[-1]["input"] == {}
                blocks[-1]["input"] = json.loads(arguments or "{}")
    assert not is_open
    return blocks


def test_plain_text_in_the_order_of_the_contract() -> None:
    events = stream(*HELLO)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, end = events[0]["message"], events[-2]
    assert start["id"].startswith("msg_")
    assert start["content"] == []
    assert start["stop_reason"] is None
    assert start["model"] == "tiny"
    assert start["usage"]["input_tokens"] == 10
    assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    usage = end["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (6, 4)
    assert usage["output_tokens"] == 3


def test_thinking_text_and_two_calls_are_blocks_of_their_own() -> None:
    events = stream(*CALLS)
    assert blocks_of(events) == BLOCKS
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens_details"] == {"thinking_tokens": 2}
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == 0]
    assert deltas[-1] == {"type": "signature_delta", "signature": "ft"}


def test_whole_and_streamed_agree() -> None:
    value = whole(*CALLS)
    assert value["content"] == BLOCKS
    assert value["stop_reason"] == "tool_use"
    assert value["usage"]["output_tokens_details"] == {"thinking_tokens": 2}
    assert value["type"] == "message"
    assert value["role"] == "assistant"


def test_a_call_without_deltas_is_a_block_too() -> None:
    events = stream(ToolCall(0, "x", "ls", {"p": 1}), Finish("stop", USED))
    (block,) = blocks_of(events)
    assert block["input"] == {"p": 1}


def test_an_empty_answer_has_no_blocks() -> None:
    assert whole(Finish("stop", USED))["content"] == []
    assert blocks_of(stream(Finish("stop", USED))) == []


@pytest.mark.parametrize(
    ("finish", "changes", "reason", "sequence"),
    [
        (Finish("stop", USED), {}, "end_turn", None),
        (Finish("length", USED), {}, "max_tokens", None),
        (Finish("stop", USED, stop_sequence="END"), {"stop_sequences": ["END"]}, "stop_sequence",
         "END"),
        # a stop string of the model's own is the end of its turn
        (Finish("stop", USED, stop_sequence="<|end|>"), {}, "end_turn", None),
    ],
)  # fmt: skip
def test_stop_reasons(
    finish: Finish, changes: dict[str, Any], reason: str, sequence: str | None
) -> None:
    expected = {"stop_reason": reason, "stop_sequence": sequence}
    assert stream(TextDelta("a"), finish, **changes)[-2]["delta"] == expected
    value = whole(TextDelta("a"), finish, **changes)
    assert {key: value[key] for key in expected} == expected


def test_a_cut_answer_with_a_call_says_max_tokens() -> None:
    events = stream(ToolCall(0, "x", "ls", {}), Finish("length", USED))
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


def test_ids_are_new_for_every_answer() -> None:
    assert whole(*HELLO)["id"] != whole(*HELLO)["id"]


def test_a_failure_inside_is_an_error_event_and_no_end() -> None:
    events = stream(TextDelta("a"), EngineDiedError("the engine died"))
    assert events[-1]["type"] == "error"
    assert events[-1]["error"] == {"type": "api_error", "message": "the engine died"}
    assert events[-1]["request_id"].startswith("req_")
    assert "message_stop" not in [event["type"] for event in events]


def test_silence_while_loading_shows_the_head_of_the_message_and_pings() -> None:
    events = stream(Waiting("load", 1, 2), 0.05, TextDelta("a"), Finish("stop", USED),
                    heartbeat_s=0.012)  # fmt: skip
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "ping"]
    assert kinds.count("message_start") == 1
    assert kinds[-1] == "message_stop"


@pytest.mark.parametrize(("thinking", "block"), [("enabled", "thinking"), ("disabled", "text")])
def test_a_long_silence_gets_empty_deltas_in_an_open_block(thinking: str, block: str) -> None:
    events = stream(
        0.08, TextDelta("a"), Finish("stop", USED), heartbeat_s=0.005, thinking={"type": thinking}
    )
    kinds = [event["type"] for event in events]
    assert kinds.count("ping") == 6
    assert events[7]["content_block"]["type"] == block
    assert events[8]["delta"] == {"type": f"{block}_delta", block: ""}
    blocks = blocks_of(events)
    assert blocks[-1] == {"type": "text", "text": "a"}
    assert len(blocks) == (2 if block == "thinking" else 1)


def test_notes_are_told() -> None:
    events = stream(TextDelta("a"), Finish("stop", USED, notes=("cut",)), service_tier="auto")
    assert events[-2]["warnings"] == ["no effect on this server: service_tier", "cut"]
    value = whole(TextDelta("a"), Finish("stop", USED, notes=("cut",)))
    assert value["warnings"] == ["cut"]
