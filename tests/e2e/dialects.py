"""One wish in four dialects, answered whole or streamed: what came, in one shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

SWITCH = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"],
          "additionalProperties": False}  # fmt: skip
TOOL = {"name": "light", "description": "Switch the light.", "parameters": SWITCH}


@dataclass(frozen=True)
class Wish:
    """answers: as SWITCH describes. calls: TOOL, which must be called where the dialect can say so.

    extra: fields of one dialect only.
    """

    stream: bool = False
    think: bool = False
    answers: bool = False
    calls: bool = False
    max_tokens: int = 12
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """calls: (name, arguments). cached: -1 = not told. turn: to send back, of whole answers only.

    prompt: tokens, cached ones among them.
    """

    text: str
    thinking: str
    calls: tuple[tuple[str, Any], ...] = ()
    prompt: int = 0
    cached: int = -1
    turn: tuple[Any, ...] = ()


Dialect = Callable[[httpx.Client, str, list[Any], Wish], Said]


def sent(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def streamed(http: httpx.Client, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects of a stream, by lines or by server-sent events."""
    with http.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            data = line.removeprefix("data:").strip()
            if data.startswith("{"):
                yield json.loads(data)


def joined(pieces: list[dict[str, Any]], key: str) -> str:
    return "".join(piece.get(key) or "" for piece in pieces)


def native(http: httpx.Client, model: str, messages: list[Any], wish: Wish) -> Said:
    body: dict[str, Any] = {"model": model, "messages": messages, "think": wish.think,
                            "options": {"temperature": 0, "num_predict": wish.max_tokens},
                            **wish.extra}  # fmt: skip
    body |= {"format": SWITCH} if wish.answers else {}
    body |= {"tools": [{"type": "function", "function": TOOL}]} if wish.calls else {}
    if wish.stream:
        parts = list(streamed(http, "/api/chat", body))
    else:
        parts = [sent(http, "/api/chat", {**body, "stream": False})]
    said = [part["message"] for part in parts]
    calls = [call["function"] for item in said for call in item.get("tool_calls") or ()]
    return Said(
        joined(said, "content"),
        joined(said, "thinking"),
        tuple((call["name"], call["arguments"]) for call in calls),
        parts[-1]["prompt_eval_count"],
        turn=() if wish.stream else tuple(said),
    )


def chat(http: httpx.Client, model: str, messages: list[Any], wish: Wish) -> Said:
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": wish.max_tokens,
            "reasoning_effort": "medium" if wish.think else "none", **wish.extra}  # fmt: skip
    if wish.answers:
        described = {"name": "switch", "schema": SWITCH, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": described}
    if wish.calls:
        body |= {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required",
                 "parallel_tool_calls": False}  # fmt: skip
    path = "/v1/chat/completions"
    if not wish.stream:
        answer = sent(http, path, body)
        said = [answer["choices"][0]["message"]]
        usage = answer["usage"]
    else:
        chunks = list(streamed(http, path, {**body, "stream_options": {"include_usage": True}}))
        said = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        usage = chunks[-1]["usage"]
    calls = [call["function"] for item in said for call in item.get("tool_calls") or ()]
    name = joined(calls, "name")
    return Said(
        joined(said, "content"),
        joined(said, "reasoning"),
        ((name, json.loads(joined(calls, "arguments"))),) if name else (),
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        () if wish.stream else tuple(said),
    )


def responses(http: httpx.Client, model: str, messages: list[Any], wish: Wish) -> Said:
    body = {"model": model, "input": messages, "temperature": 0, "store": False,
            "max_output_tokens": wish.max_tokens,
            "reasoning": {"effort": "medium" if wish.think else "none"}, **wish.extra}  # fmt: skip
    if wish.answers:
        described = {"type": "json_schema", "name": "switch", "schema": SWITCH, "strict": True}
        body["text"] = {"format": described}
    if wish.calls:
        body |= {"tools": [{"type": "function", **TOOL}], "tool_choice": "required",
                 "parallel_tool_calls": False}  # fmt: skip
    if not wish.stream:
        return _response(sent(http, "/v1/responses", body))
    events = list(streamed(http, "/v1/responses", body))
    last = events[-1]
    assert last["type"] in ("response.completed", "response.incomplete"), last
    said = _response(last["response"])
    texts = [e for e in events if e["type"] == "response.output_text.delta"]
    thoughts = [e for e in events if e["type"].startswith("response.reasoning")]
    thoughts = [e for e in thoughts if e["type"].endswith("_text.delta")]
    assert joined(texts, "delta") == said.text
    assert joined(thoughts, "delta") == said.thinking
    pieces = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert not said.calls or json.loads(joined(pieces, "delta")) == said.calls[0][1]
    return Said(said.text, said.thinking, said.calls, said.prompt, said.cached)


def _response(answer: dict[str, Any]) -> Said:
    def text_of(kind: str) -> str:
        items = [item for item in answer["output"] if item["type"] == kind]
        parts = [part for item in items for part in item.get("content") or item.get("summary")]
        return joined(parts, "text")

    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    usage = answer["usage"]
    return Said(
        text_of("message"),
        text_of("reasoning"),
        tuple((call["name"], json.loads(call["arguments"])) for call in calls),
        usage["input_tokens"],
        usage["input_tokens_details"]["cached_tokens"],
        tuple(answer["output"]),
    )


def anthropic(http: httpx.Client, model: str, messages: list[Any], wish: Wish) -> Said:
    thinking = {"type": "enabled", "budget_tokens": 8} if wish.think else {"type": "disabled"}
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": wish.max_tokens,
            "thinking": thinking, **wish.extra}  # fmt: skip
    if wish.answers:
        body["output_config"] = {"format": {"type": "json_schema", "schema": SWITCH}}
    if wish.calls:
        described = {"name": TOOL["name"], "description": TOOL["description"]}
        body |= {"tools": [{**described, "input_schema": SWITCH}],
                 "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}  # fmt: skip
    if not wish.stream:
        answer = sent(http, "/v1/messages", body)
        blocks, usage = answer["content"], answer["usage"]
        calls = [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
        turn: tuple[Any, ...] = ({"role": "assistant", "content": blocks},)
    else:
        events = list(streamed(http, "/v1/messages", body))
        (usage,) = (event["usage"] for event in events if event["type"] == "message_delta")
        blocks = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        begun = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        names = [block["name"] for block in begun if block["type"] == "tool_use"]
        calls = [(name, json.loads(joined(blocks, "partial_json"))) for name in names]
        turn = ()
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + cached
    text, thought = joined(blocks, "text"), joined(blocks, "thinking")
    return Said(text, thought, tuple(calls), prompt, cached, turn)


DIALECTS: dict[str, Dialect] = {
    "native": native,
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
}
