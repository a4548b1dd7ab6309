"""Ollama's generate and chat, asked over real sockets: shapes, texts, newlines, errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.ftman.gateway.serving import Manager, lines_of

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
METRICS = ["total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
GENERATE = {"model": "tiny", "prompt": "Hi"}


def post(manager: Manager, path: str, body: Any) -> Any:
    return manager.http.post(path, json=body)


def test_generate_streams_ndjson_with_context_and_metrics(manager: Manager) -> None:
    reply = post(manager, "/api/generate", GENERATE)
    lines = lines_of(reply)
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert list(lines[0]) == ["model", "created_at", "response", "done"]
    assert all(STAMP.fullmatch(line["created_at"]) for line in lines)
    assert "".join(line["response"] for line in lines) == "Hello <b>"
    last = lines[-1]
    assert list(last)[:6] == ["model", "created_at", "response", "done", "done_reason", "context"]
    assert last["done_reason"] == "stop"
    assert last["eval_count"] == 9
    assert len(last["context"]) == last["prompt_eval_count"] + 9
    assert all(0 not in (last[key],) for key in METRICS if key in last)
    assert b"\\u003c" in reply.content
    assert b"<" not in reply.content


def test_chat_streams_messages_without_context(manager: Manager) -> None:
    lines = lines_of(post(manager, "/api/chat", CHAT))
    assert "".join(line["message"]["content"] for line in lines) == "Hello <b>"
    assert lines[0]["message"]["role"] == "assistant"
    assert lines[-1]["message"] == {"role": "assistant", "content": ""}
    assert "context" not in lines[-1]
    assert "warning" not in lines[-1]


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
def test_whole_answers_equal_streamed_ones_and_end_without_newline(
    manager: Manager, path: str, body: dict[str, Any]
) -> None:
    reply = post(manager, path, body | {"stream": False})
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert not reply.content.endswith(b"\n")
    value = reply.json()
    text = value["response"] if path.endswith("generate") else value["message"]["content"]
    assert (text, value["done"], value["eval_count"]) == ("Hello <b>", True, 9)
    streamed = lines_of(post(manager, path, body))[-1]
    volatile = {"created_at", "response", "message", *METRICS, "eval_duration"}
    assert {k: v for k, v in value.items() if k not in volatile} == {
        k: v for k, v in streamed.items() if k not in volatile
    }


def test_model_is_echoed_as_sent(manager: Manager) -> None:
    for given in ("TINY", "tiny:latest", "library/tiny"):
        value = post(manager, "/api/chat", CHAT | {"model": given, "stream": False}).json()
        assert value["model"] == given


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body", "key", "empty"),
    [
        ("/api/generate", {"model": "tiny"}, "response", ""),
        ("/api/chat", {"model": "tiny"}, "message", {"role": "assistant", "content": ""}),
    ],
)
def test_empty_requests_load_and_unload_in_one_plain_object(
    manager: Manager, path: str, body: dict[str, Any], key: str, empty: Any, stream: bool
) -> None:
    def ask(**extra: Any) -> dict[str, Any]:
        reply = post(manager, path, body | {"stream": stream} | extra)
        assert reply.headers["content-type"] == "application/json; charset=utf-8"
        value: dict[str, Any] = reply.json()
        assert value.pop("created_at")
        return value

    assert ask() == {"model": "tiny", key: empty, "done": True, "done_reason": "load"}
    assert len(manager.http.get("/api/ps").json()["models"]) == 1
    assert ask(keep_alive=0)["done_reason"] == "unload"
    assert manager.http.get("/api/ps").json()["models"] == []
    assert ask(keep_alive="0")["done_reason"] == "unload"


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("generate", {"prompt": "x"}, 404, "model '' not found"),
        ("generate", {"model": "a//b", "prompt": "x"}, 400, "invalid model name"),
        ("generate", {"model": "nope", "prompt": "x"}, 404, "model 'nope' not found"),
        ("chat", {}, 400, "model is required"),
        ("chat", {"model": "x:"}, 400, "invalid model name"),
        ("chat", {"model": "x@sha256:ab"}, 400, "invalid model name"),
        ("chat", {"model": "t" * 81}, 400, "invalid model name"),
        ("chat", {"model": "../../etc/passwd"}, 400, "invalid model name"),
        ("chat", {"model": "nope", "messages": []}, 404, "model 'nope' not found"),
        (
            "chat",
            {"model": "gpt:120b-cloud"},
            403,
            "ollama cloud is disabled: remote model is unavailable",
        ),
        (
            "chat",
            CHAT | {"tools": [{"type": "function"}]},
            400,
            "registry.ollama.ai/library/tiny:latest does not support tools",
        ),
        ("chat", CHAT | {"think": True}, 400, '"tiny" does not support thinking'),
        ("chat", CHAT | {"think": "high"}, 400, '"tiny" does not support thinking'),
        (
            "chat",
            CHAT | {"think": "x"},
            400,
            'invalid think value: "x" (must be "high", "medium", "low", "max", true, or false)',
        ),
        (
            "chat",
            CHAT | {"think": 1},
            400,
            'think must be a boolean or string ("high", "medium", "low", "max", true, or false)',
        ),
        (
            "chat",
            CHAT | {"format": "xml"},
            500,
            'invalid format: "\\"xml\\""; expected "json" or a valid JSON Schema object',
        ),
        ("chat", CHAT | {"top_logprobs": 21}, 400, "top_logprobs must be between 0 and 20"),
        (
            "chat",
            CHAT | {"stream": "yes"},
            400,
            "json: cannot unmarshal string into Go struct field ChatRequest.stream of type bool",
        ),
        (
            "chat",
            {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "text"}]}]},
            400,
            "json: cannot unmarshal array into Go struct field "
            "ChatRequest.messages.content of type string",
        ),
        (
            "generate",
            GENERATE | {"suffix": "x"},
            400,
            "registry.ollama.ai/library/tiny:latest does not support insert",
        ),
        (
            "generate",
            GENERATE | {"raw": True, "system": "x"},
            400,
            "raw mode does not support template, system, or context",
        ),
    ],
)
def test_error_table(
    manager: Manager, path: str, body: dict[str, Any], status: int, text: str
) -> None:
    reply = post(manager, f"/api/{path}", body)
    assert (reply.status_code, reply.json()["error"]) == (status, text)
    assert reply.headers["content-type"] == "application/json"
    assert not reply.content.endswith(b"\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_ctx": "5"}, 'option "num_ctx" must be of type integer'),
        ({"temperature": "hot"}, 'option "temperature" must be of type float32'),
        ({"temperature": True}, 'option "temperature" must be of type float32'),
        ({"stop": "x"}, 'option "stop" must be of type array'),
        ({"stop": [1]}, 'option "stop" must be of an array of strings'),
        ({"use_mmap": 1}, 'option "use_mmap" must be of type boolean'),
        ({"num_gpu": "all"}, 'option "num_gpu" must be of type integer'),
    ],
)
def test_option_types_are_500(manager: Manager, options: dict[str, Any], text: str) -> None:
    reply = post(manager, "/api/generate", GENERATE | {"options": options})
    assert (reply.status_code, reply.json()) == (500, {"error": text})


@pytest.mark.parametrize(
    "extra",
    [
        {"options": {"unknown": 1, "mirostat": 2, "num_ctx": None, "top_k": 40.0, "seed": -1}},
        {"options": {"num_predict": -1, "top_p": 0, "temperature": 0, "repeat_last_n": -1}},
        {"tools": [], "format": "", "think": False, "images": [], "stream": None},
        {"format": None, "think": None, "keep_alive": None, "options": None, "unheard_of": 5},
        {"Model": "tiny", "keep_alive": 5},
    ],
)
def test_what_clients_really_send_is_accepted(manager: Manager, extra: dict[str, Any]) -> None:
    reply = post(manager, "/api/chat", CHAT | extra)
    assert reply.status_code == 200
    assert lines_of(reply)[-1]["done"] is True


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("300", 'time: missing unit in duration "300"'),
        ("-1", 'time: missing unit in duration "-1"'),
        ("", 'time: invalid duration ""'),
        ("x", 'time: invalid duration "x"'),
        (True, "Unsupported type: 'bool'"),
    ],
)
def test_keep_alive_errors(manager: Manager, value: Any, text: str) -> None:
    reply = post(manager, "/api/generate", {"model": "tiny", "keep_alive": value})
    assert (reply.status_code, reply.json()) == (400, {"error": text})


@pytest.mark.parametrize(
    ("value", "forever"), [(5, False), (60.5, False), ("5m", False), (-1, True), ("-1m", True)]
)
def test_keep_alive_shows_in_ps(manager: Manager, value: Any, forever: bool) -> None:
    assert post(manager, "/api/generate", {"model": "tiny", "keep_alive": value}).is_success
    (entry,) = manager.http.get("/api/ps").json()["models"]
    assert (int(entry["expires_at"][:4]) > 2200) is forever
    assert entry["name"] == "tiny:latest"
    assert re.fullmatch(r"[0-9a-f]{64}", entry["digest"])
    assert "context_length" not in entry["details"]
    assert entry["context_length"] == 512
    post(manager, "/api/generate", {"model": "tiny", "keep_alive": 0})


def test_bodies_that_are_no_requests(manager: Manager) -> None:
    for path in ("generate", "chat", "show", "copy", "pull", "create"):
        reply = manager.http.post(f"/api/{path}")
        assert (reply.status_code, reply.json()) == (400, {"error": "missing request body"}), path
        reply = manager.http.post(f"/api/{path}", content=b'{"model": ')
        assert (reply.status_code, reply.json()) == (400, {"error": "unexpected EOF"}), path


def test_stop_strings_end_the_text_and_are_not_part_of_it(manager: Manager) -> None:
    body = GENERATE | {"stream": False, "options": {"stop": ["<b"]}}
    value = post(manager, "/api/generate", body).json()
    assert (value["response"], value["done_reason"]) == ("Hello ", "stop")


def test_num_predict_bounds_and_names_length(manager: Manager) -> None:
    body = GENERATE | {"stream": False, "options": {"num_predict": 3}}
    value = post(manager, "/api/generate", body).json()
    assert (value["response"], value["done_reason"], value["eval_count"]) == ("Hel", "length", 3)


def test_logprobs_are_attached(manager: Manager) -> None:
    body = GENERATE | {"logprobs": True, "top_logprobs": 2}
    lines = lines_of(post(manager, "/api/generate", body))
    entries = [entry for line in lines for entry in line.get("logprobs", ())]
    assert "".join(entry["token"] for entry in entries) == "Hello <b>"
    assert entries[0]["bytes"] == [72]


def test_too_long_is_cut_and_said_or_refused(manager: Manager) -> None:
    old = [{"role": "user", "content": "x" * 200} for _ in range(4)]
    body = {"model": "tiny", "messages": [*old, {"role": "user", "content": "new"}]}
    lines = lines_of(post(manager, "/api/chat", body))
    assert "2 oldest messages were left out" in lines[-1]["warning"]
    reply = post(manager, "/api/chat", body | {"truncate": False})
    assert reply.status_code == 400
    assert reply.json()["error"].startswith("the prompt is longer than the context length curr")
    single = {"model": "tiny", "messages": [{"role": "user", "content": "x" * 700}]}
    lines = lines_of(post(manager, "/api/chat", single))
    assert "tokens were cut out" in lines[-1]["warning"]
    assert post(manager, "/api/chat", single | {"shift": False}).status_code == 400


def test_num_ctx_is_clamped_to_training_and_said(manager: Manager) -> None:
    value = post(manager, "/api/chat", CHAT | {"stream": False, "options": {"num_ctx": 9999}})
    assert "512 tokens this model was trained on" in value.json()["warning"]


def test_context_continues_an_earlier_answer(manager: Manager) -> None:
    first = post(manager, "/api/generate", GENERATE | {"stream": False}).json()
    body = GENERATE | {"stream": False, "context": first["context"]}
    second = post(manager, "/api/generate", body).json()
    assert second["context"][: len(first["context"])] == first["context"]
    wrong = post(manager, "/api/generate", GENERATE | {"context": [99999]})
    assert wrong.status_code == 400
    assert "token id 99999" in wrong.json()["error"]
