"""The OpenAI routes over real sockets: shapes, order of chunks, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ftman.gateway.serving import Manager, frames_of, ids_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
PLAIN = {"model": "tiny", "prompt": "Hi"}


def post(manager: Manager, path: str, body: Any) -> Any:
    return manager.http.post(path, json=body)


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_whole_chat(manager: Manager, prefix: str) -> None:
    reply = post(manager, f"{prefix}/chat/completions", CHAT)
    assert reply.headers["content-type"] == "application/json"
    assert reply.content.endswith(b"\n")
    value = reply.json()
    assert value["object"] == "chat.completion"
    assert value["id"].startswith("chatcmpl-")
    assert value["system_fingerprint"].startswith("fp_ft_")
    (choice,) = value["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hello <b>", "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    usage = value["usage"]
    assert usage["completion_tokens"] == 9
    assert usage["total_tokens"] == usage["prompt_tokens"] + 9
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_streamed_chat_in_order(manager: Manager) -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    reply = post(manager, "/v1/chat/completions", body)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    *chunks, done = frames_of(reply)
    assert done == "[DONE]"
    assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
    deltas = [c["choices"][0] for c in chunks if c["choices"]]
    assert deltas[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(d["delta"].get("content", "") for d in deltas) == "Hello <b>"
    assert all("role" not in d["delta"] for d in deltas[1:])
    assert deltas[-1] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert all(d["finish_reason"] is None for d in deltas[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 9


def test_no_usage_chunk_unless_asked_for(manager: Manager) -> None:
    *chunks, _ = frames_of(post(manager, "/v1/chat/completions", CHAT | {"stream": True}))
    assert all(c["choices"] for c in chunks)
    assert all("usage" not in c for c in chunks)


def test_several_choices(manager: Manager) -> None:
    value = post(manager, "/v1/chat/completions", CHAT | {"n": 3}).json()
    assert [c["index"] for c in value["choices"]] == [0, 1, 2]
    one = post(manager, "/v1/chat/completions", CHAT).json()
    assert value["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert value["usage"]["completion_tokens"] == 27
    *chunks, done = frames_of(
        post(manager, "/v1/chat/completions", CHAT | {"n": 2, "stream": True})
    )
    ends = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1]
    assert done == "[DONE]"


def test_logprobs(manager: Manager) -> None:
    body = CHAT | {"logprobs": True, "top_logprobs": 2}
    (choice,) = post(manager, "/v1/chat/completions", body).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "Hello <b>"
    assert set(entries[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    assert isinstance(entries[0]["top_logprobs"], list)


@pytest.mark.parametrize(
    "content",
    [
        "Hi",
        [{"type": "text", "text": "H"}, {"type": "input_text", "text": "i"}],
        [{"type": "text", "text": "Hi", "cache_control": {"type": "x"}}],
    ],
)
def test_content_forms(manager: Manager, content: Any) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": content, "name": "me"}]}
    value = post(manager, "/v1/chat/completions", body).json()
    plain = post(manager, "/v1/chat/completions", CHAT).json()
    assert value["usage"] == plain["usage"]


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "stop": []},
        {"stop": None, "logit_bias": {}, "user": "me", "store": True, "metadata": {"a": "b"}},
        {"max_tokens": 5.0, "seed": 1, "temperature": 0, "top_p": 1, "logit_bias": {"5": -100}},
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}},
        {"n": 1, "frequency_penalty": 0.5, "presence_penalty": -0.5, "top_k": -1, "min_p": 0.1},
        {"max_completion_tokens": 100000},
    ],
)
def test_what_clients_send_is_accepted(manager: Manager, extra: dict[str, Any]) -> None:
    assert post(manager, "/v1/chat/completions", CHAT | extra).status_code == 200


@pytest.mark.parametrize(
    ("extra", "param", "text"),
    [
        ({"messages": []}, "messages", "[] is too short - 'messages'"),
        ({"messages": "x"}, "messages", "must be of type array"),
        ({"messages": [5]}, "messages", "must be of type object"),
        ({"messages": [{"role": "x", "content": ""}]}, "messages[0].role", "must be one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is missing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "messages[0].content[0].type",
            "'video'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            "reads text only",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name", "is missing"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"response_format": {"type": "yaml"}}, "response_format", "unknown type"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "must be"),
        ({"n": 9}, "n", "between 1 and 8"),
        ({"n": 0}, "n", "between 1 and 8"),
        ({"temperature": 3}, "temperature", "between 0 and 2"),
        ({"temperature": "hot"}, "temperature", "must be of type number"),
        ({"top_p": 0}, "top_p", "above 0"),
        ({"max_tokens": 0}, "max_tokens", "1 or more"),
        ({"max_tokens": "5"}, "max_tokens", "must be of type integer"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
        ({"top_logprobs": 2}, "top_logprobs", "needs logprobs"),
        ({"seed": 2**63}, "seed", "64-bit"),
        ({"stop": 5}, "stop", "must be of type array"),
        ({"grammar": "root ::= x"}, None, "(GBNF) is not built"),
        ({"stream": "yes"}, "stream", "must be of type boolean"),
    ],
)
def test_bad_requests(
    manager: Manager, extra: dict[str, Any], param: str | None, text: str
) -> None:
    reply = post(manager, "/v1/chat/completions", CHAT | extra)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert text in error["message"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert set(error) == {"message", "type", "param", "code"}


def test_unknown_model_and_bodies(manager: Manager) -> None:
    reply = post(manager, "/v1/chat/completions", CHAT | {"model": "nope"})
    assert reply.status_code == 404
    assert reply.json()["error"] == {
        "message": "model 'nope' not found",
        "type": "not_found_error",
        "param": "model",
        "code": "model_not_found",
    }
    reply = manager.http.post("/v1/chat/completions")
    assert (reply.status_code, reply.json()["error"]["message"]) == (400, "EOF")
    reply = manager.http.post("/v1/chat/completions", content=b"[]")
    assert reply.status_code == 400


def test_too_long_is_refused_with_the_code_clients_look_for(manager: Manager) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 600}]}
    for extra in ({}, {"stream": True}):
        reply = post(manager, "/v1/chat/completions", body | extra)
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 512 tokens" in error["message"]
        assert "prompt is too long: " in error["message"]
        assert error["n_ctx"] == 512


def test_models(manager: Manager) -> None:
    value = manager.http.get("/v1/models?limit=1000").json()
    assert (value["object"], value["has_more"]) == ("list", False)
    entry = next(e for e in value["data"] if e["id"] == "tiny:latest")
    assert (entry["object"], entry["owned_by"], entry["type"]) == ("model", "library", "model")
    assert entry["max_model_len"] == 512
    assert isinstance(entry["created"], int)
    for given in ("tiny", "library/tiny:latest", "registry.ollama.ai/library/tiny"):
        for prefix in ("/v1", ""):
            assert manager.http.get(f"{prefix}/models/{given}").json()["id"] == given
    assert manager.http.get("/v1/models/tiny/").json()["id"] == "tiny"
    missing = manager.http.get("/v1/models/a/b/nope")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_completions_use_no_template(manager: Manager) -> None:
    value = post(manager, "/v1/completions", PLAIN).json()
    assert (value["object"], value["usage"]["prompt_tokens"]) == ("text_completion", 2)
    assert value["choices"] == [
        {"text": "Hello <b>", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    *chunks, done = frames_of(post(manager, "/v1/completions", PLAIN | {"stream": True}))
    assert done == "[DONE]"
    assert "".join(c["choices"][0]["text"] for c in chunks) == "Hello <b>"
    assert chunks[-1]["choices"][0] == {
        "text": "",
        "index": 0,
        "logprobs": None,
        "finish_reason": "stop",
    }


@pytest.mark.parametrize(
    ("prompt", "indexes"),
    [
        ("Hi", [0]),
        (["a", "b"], [0, 1]),
        ([40, 41], [0]),
        ([[40], [41, 42], "c"], [0, 1, 2]),
    ],
)
def test_prompt_forms(manager: Manager, prompt: Any, indexes: list[int]) -> None:
    value = post(manager, "/v1/completions", PLAIN | {"prompt": prompt}).json()
    assert [c["index"] for c in value["choices"]] == indexes


@pytest.mark.parametrize("prompt", [None, "", [], [""], [[]], [1.5], {"a": 1}, [[1], 2], 7])
def test_bad_prompts(manager: Manager, prompt: Any) -> None:
    reply = post(manager, "/v1/completions", PLAIN | {"prompt": prompt})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "prompt")


def test_ids_outside_the_vocabulary(manager: Manager) -> None:
    reply = post(manager, "/v1/completions", PLAIN | {"prompt": [5, 10**6]})
    assert reply.status_code == 400
    assert "1000000" in reply.json()["error"]["message"]


def test_echo_and_legacy_logprobs(manager: Manager) -> None:
    body = {"model": "tiny", "prompt": list(ids_of("abc")), "echo": True, "max_tokens": 1}
    value = post(manager, "/v1/completions", body | {"temperature": 0}).json()
    assert value["choices"][0]["text"] == "abcH"
    value = post(manager, "/v1/completions", PLAIN | {"logprobs": 2}).json()
    logprobs = value["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "Hello <b>"
    assert logprobs["text_offset"] == list(range(9))
    assert len({len(column) for column in logprobs.values()}) == 1
    reply = post(manager, "/v1/completions", body | {"logprobs": 1, "stream": True})
    assert reply.status_code == 400


def test_unbuilt_routes_use_the_envelope(manager: Manager) -> None:
    reply = post(manager, "/v1/audio/transcriptions", {"model": "tiny"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "not built yet" in error["message"]
    assert error["type"] == "invalid_request_error"


def test_messages_refuse_in_anthropics_envelope(manager: Manager) -> None:
    reply = manager.http.post("/v1/messages?beta=true", json={"model": "tiny"})
    value = reply.json()
    assert (reply.status_code, value["type"]) == (400, "error")
    assert value["error"]["type"] == "invalid_request_error"
    assert value["request_id"] == reply.headers["x-request-id"]


def test_unknown_paths_and_methods_answer_json(manager: Manager) -> None:
    for method, path, status in (
        ("GET", "/v1/nope", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/responses/resp_1", 404),
    ):
        reply = manager.http.request(method, path)
        assert reply.status_code == status
        assert json.loads(reply.content)["error"]["type"] in (
            "invalid_request_error",
            "not_found_error",
        )
