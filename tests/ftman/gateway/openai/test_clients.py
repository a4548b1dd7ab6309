"""Requests in the shapes that real clients send, each with what the service must make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ftman.chat.types import Constraint, ToolChoice
from tests.ftman.gateway.openai.scripted import ScriptedService, ask

Check = Callable[[Any], bool]
SHELL = {
    "type": "function",
    "function": {
        "name": "mcp.shell/run",
        "description": "Run it",
        "strict": False,
        "parameters": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "cmd": {"type": ["string", "null"], "minLength": 1, "pattern": "^.+$"},
                "env": {"type": "object", "propertyNames": {"pattern": "^[A-Z]"}},
                "n": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "all"}]},
            },
            "required": ["cmd"],
            "additionalProperties": False,
        },
    },
}
CALL = {"id": "call1", "type": "function", "function": {"name": "run", "arguments": '{"cmd":"ls"}'}}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
AGENT = STREAM | {"tools": [SHELL], "tool_choice": "auto"}


def chat(*messages: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"model": "tiny", "messages": list(messages)} | more


def user(content: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": content}


def responses(given: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"model": "tiny", "input": given} | more


CODEX: dict[str, Any] = {
    "stream": True,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"thread_id": "t"},
    "tools": [
        {"type": "function", "name": "exec", "strict": False, "parameters": {"type": "object"}},
        {"type": "namespace", "name": "multi", "description": "Agents",
         "tools": [{"type": "function", "name": "close", "parameters": {"type": "object"}}]},
        {"type": "web_search", "external_web_access": True},
    ],
}  # fmt: skip
DEVELOPER = {
    "type": "message",
    "id": "msg_0",
    "role": "developer",
    "content": [{"type": "input_text", "text": "You code."}],
}
CASES: dict[str, tuple[tuple[str, dict[str, Any]], Check]] = {
    "an agent's first turn": (
        chat({"role": "system", "content": "You code."}, user(), user([{"type": "text",
             "text": "Context"}]), **AGENT, max_completion_tokens=4096, store=False),
        lambda r: [m.role for m in r.messages] == ["system", "user", "user"]
        and r.tools[0].name == "mcp.shell/run" and r.options.num_predict == 4096,
    ),
    "a turn after a tool, result in parts, no content, ids changed": (
        chat(user(), {"role": "assistant", "content": None, "tool_calls": [CALL]},
             {"role": "tool", "tool_call_id": "call1",
              "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, **AGENT),
        lambda r: r.messages[1].content == "" and r.messages[2].content == "ab"
        and r.messages[2].tool_call_id == "call1",
    ),
    "an assistant turn without any content": (
        chat(user(), {"role": "assistant", "tool_calls": [CALL], "refusal": None},
             {"role": "tool", "tool_call_id": "call1", "content": ""}),
        lambda r: r.messages[1].tool_calls[0]["function"]["name"] == "run",
    ),
    "reasoning under the newer name": (
        chat(user(), {"role": "assistant", "content": "", "reasoning_content": "Hm"}, user()),
        lambda r: r.messages[1].thinking == "Hm",
    ),
    "reasoning under the older name": (
        chat(user(), {"role": "assistant", "content": None, "reasoning": "Hm"}, user()),
        lambda r: r.messages[1].thinking == "Hm",
    ),
    "a title request": (
        chat({"role": "system", "content": "Title."}, user(), max_tokens=8192, **STREAM),
        lambda r: r.tools == (),
    ),
    "a library that builds on a named choice": (
        chat(user(), tools=[{"type": "function", "function": {"name": "P", "parameters": {}}}],
             tool_choice={"type": "function", "function": {"name": "P"}}),
        lambda r: r.tool_choice == ToolChoice("named", "P"),
    ),
    "a library that builds on required": (
        chat(user(), tools=[{"type": "function", "function": {"name": "final", "strict": True}}],
             tool_choice="required", stream=False),
        lambda r: r.tool_choice == ToolChoice("required") and r.tools[0].strict,
    ),
    "a schema without strict": (
        chat(user(), response_format={"type": "json_schema", "json_schema": {"name": "P",
             "schema": {"type": "object", "title": "P"}}}),
        lambda r: r.constraint == Constraint("json_schema", '{"type":"object","title":"P"}'),
    ),
    "an evaluation of chat": (
        chat(user("Is 2 even?"), max_tokens=16, temperature=0, stop=["\n\n"], seed=1234),
        lambda r: r.options.seed == 1234 and r.options.stop == ("\n\n",),
    ),
    "a load generator": (
        chat(user([{"type": "text", "text": "Say hi"}]), stream=True,
             stream_options={"include_usage": True, "continuous_usage_stats": True}),
        lambda r: r.logprobs == 0,
    ),
    "everything the official client can say": (
        chat({"role": "developer", "content": "Brief"}, user(), temperature=0.2, top_p=0.9, n=1,
             logit_bias={"50": -100}, max_completion_tokens=64, presence_penalty=0.1,
             reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}, top_k=40,
             repetition_penalty=1.1, min_p=0.05, user="u"),
        lambda r: r.think is False and r.options.top_k == 40,
    ),
    "an evaluation of likelihoods": (
        ("/v1/completions", {"model": "tiny", "prompt": [[7, 8, 9]], "temperature": 0,
         "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}),
        lambda r: r.token_ids == (7, 8, 9) and r.logprobs == 1 and r.echo,
    ),
    "an editor that fills in": (
        ("/v1/completions", {"model": "tiny", "prompt": "a", "suffix": "b"} | STREAM),
        lambda r: r.suffix == "b",
    ),
    "codex, first turn": (
        responses([DEVELOPER, DEVELOPER, {"type": "message", "role": "user",
                   "content": [{"type": "input_text", "text": "Hi"}]}], **CODEX),
        lambda r: r.messages[0].content == "You code.\n\nYou code."
        and [tool.name for tool in r.tools] == ["exec", "multi__close"] and r.think is None,
    ),
    "codex, after a call of a group": (
        responses([DEVELOPER, user(), {"type": "function_call", "id": "fc_1", "call_id": "c",
                   "status": "completed", "name": "close", "namespace": "multi",
                   "arguments": "{}"}, {"type": "function_call_output", "id": "fco",
                   "call_id": "c", "output": "ok"}], **CODEX),
        lambda r: r.messages[2].tool_calls[0]["function"]["name"] == "multi__close",
    ),
    "codex, after reasoning it was given sealed": (
        responses([DEVELOPER, user(), {"type": "reasoning", "id": "rs_1", "content": None,
                   "summary": [{"type": "summary_text", "text": "Hm"}],
                   "encrypted_content": "c29tZW9uZSBlbHNl"}, {"type": "function_call",
                   "call_id": "c", "name": "exec", "arguments": "{}"},
                   {"type": "function_call_output", "call_id": "c", "output": "ok"}], **CODEX),
        lambda r: r.messages[2].thinking == "Hm",
    ),
    "codex, after looking at an image": (
        responses([user(), {"type": "function_call", "call_id": "c", "name": "exec",
                   "arguments": "{}"}, {"type": "function_call_output", "call_id": "c",
                   "output": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]}],
                  **CODEX),
        lambda r: "reads text only" in r.messages[2].content,
    ),
    "a developer text as a plain string": (
        responses([{"role": "developer", "content": "Code"}, user([{"type": "input_text",
                   "text": "Hi"}])], stream=True, store=False, max_output_tokens=8192),
        lambda r: r.messages[0].role == "system" and r.options.num_predict == 8192,
    ),
    "a format and a named choice at once": (
        responses([user()], text={"format": {"type": "json_schema", "name": "P", "strict": True,
                  "schema": {"type": "object"}}}, tools=[{"type": "function", "name": "P"}],
                  tool_choice={"type": "function", "name": "P"}),
        lambda r: r.tool_choice.name == "P" and r.constraint is not None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_it_is_taken_and_understood(case: str) -> None:
    (path, body), check = CASES[case]
    service = ScriptedService()
    reply = ask(service, path, body)
    assert reply.status_code == 200, reply.text
    (request,) = service.asked
    assert check(request), request
    json.dumps([dict(tool.given) for tool in getattr(request, "tools", ())])
