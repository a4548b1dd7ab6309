"""What goes wrong while an answer is made: deaths, silence, full queues, clients that leave."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftman.config import EngineSettings
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import (
    Tiny,
    frames_of,
    ids_of,
    lines_of,
    make_config,
    managing,
)

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
ENDLESS = FakeScript(token_s=0.01)


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def until(condition: Callable[[], bool], limit_s: float) -> float:
    """Seconds until the condition holds; fails after `limit_s`."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s, "it did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - started


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_engine_death_in_a_stream_is_a_typed_error_and_no_end(
    tmp_path: Path, path: str, after: int
) -> None:
    dying = FakeScript(tokens=ids_of("Hello world"), die_at="token", die_after=after, token_s=0.01)
    healthy = FakeScript(tokens=ids_of("ok"))
    with managing(tmp_path, [dying, healthy]) as manager:
        reply = manager.http.post(path, json=CHAT | {"stream": True})
        assert reply.status_code == 200
        if path == "/api/chat":
            *_, last = lines_of(reply)
            assert "an error was encountered while running the model: " in last["error"]
            assert not any(line.get("done") for line in lines_of(reply))
        else:
            frames = frames_of(reply)
            assert "[DONE]" not in frames
            assert frames[-1]["error"]["type"] == "server_error"
            assert all(not frame["choices"][0]["finish_reason"] for frame in frames[:-1])
        again = manager.http.post("/api/chat", json=CHAT | {"stream": False})
        assert again.json()["message"]["content"] == "ok"


@pytest.mark.parametrize("stream", [True, False])
def test_a_failed_load_is_a_real_status(tmp_path: Path, stream: bool) -> None:
    script = FakeScript(load_error="the shard weights-00000.ftw is short")
    with managing(tmp_path, script) as manager:
        reply = manager.http.post("/api/chat", json=CHAT | {"stream": stream})
        assert reply.status_code == 500
        assert "weights-00000.ftw is short" in reply.json()["error"]
        reply = manager.http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
        assert reply.status_code in (500, 503)
        assert reply.json()["error"]["code"]


def test_whole_answers_that_fail_are_errors_with_a_status(tmp_path: Path) -> None:
    script = FakeScript(tokens=ids_of("Hello"), die_at="token", die_after=2)
    with managing(tmp_path, script) as manager:
        reply = manager.http.post("/api/chat", json=CHAT | {"stream": False})
        assert reply.status_code == 500
        assert "running the model" in reply.json()["error"]


def test_waiting_streams_show_life_in_the_form_their_dialect_accepts(tmp_path: Path) -> None:
    script = FakeScript(load_s=0.5, tokens=ids_of("ok"))
    with managing(tmp_path, script, heartbeat_s=0.1) as manager:
        lines = lines_of(manager.http.post("/api/chat", json=CHAT))
        assert lines[0]["message"]["content"] == ""
        assert lines[0]["done"] is False
        assert "".join(line["message"]["content"] for line in lines) == "ok"
    with managing(tmp_path / "2", script, heartbeat_s=0.1) as manager:
        reply = manager.http.post("/v1/chat/completions", json=CHAT | {"stream": True})
        assert reply.text.startswith(": keep-alive\n\n")
        assert frames_of(reply)[-1] == "[DONE]"


def test_a_load_that_fails_after_a_sign_of_life_fails_inside_the_stream(tmp_path: Path) -> None:
    script = FakeScript(load_s=0.4, load_error="broken")
    with managing(tmp_path, script, heartbeat_s=0.1) as manager:
        reply = manager.http.post("/v1/chat/completions", json=CHAT | {"stream": True})
        assert reply.status_code == 200
        assert "[DONE]" not in reply.text
        assert "broken" in frames_of(reply)[-1]["error"]["message"]


def leave(connection: socket.socket, how: str) -> None:
    """Close, reset, or half-close."""
    if how == "rst":
        linger = b"\x01\0\0\0\0\0\0\0"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.close()
    elif how == "half":
        connection.shutdown(socket.SHUT_WR)
    else:
        connection.close()


@pytest.mark.parametrize("how", ["close", "rst", "half"])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_generation_frees_the_engine(tmp_path: Path, how: str, stream: bool) -> None:
    with managing(tmp_path, ENDLESS) as manager:
        connection = manager.raw(request_bytes("/api/chat", CHAT | {"stream": stream}))
        until(lambda: manager.engine_runs() == 1, 20)
        time.sleep(0.05)
        leave(connection, how)
        assert until(lambda: manager.engine_runs() == 0, 20) <= 10
        connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_during_a_load_ends_the_request(tmp_path: Path, stream: bool) -> None:
    with managing(tmp_path, FakeScript(load_s=2)) as manager:
        connection = manager.raw(request_bytes("/v1/chat/completions", CHAT | {"stream": stream}))
        until(lambda: bool(manager.gateway_requests()), 20)
        connection.close()
        assert until(lambda: not manager.gateway_requests(), 20) <= 10


def test_leaving_while_queued_leaves_the_queue(tmp_path: Path) -> None:
    config = make_config(
        tmp_path,
        max_queue=1,
        max_loaded_models=1,
        engine=EngineSettings(num_parallel=1, threads=1, adopt=False),
    )
    models = (Tiny(), Tiny("other:latest", seed=1))
    with managing(tmp_path, FakeScript(token_s=0.1), models, config=config) as manager:
        first = manager.raw(request_bytes("/api/chat", CHAT))
        until(lambda: manager.engine_runs() == 1, 20)
        queued = manager.raw(request_bytes("/api/chat", CHAT | {"model": "other"}))
        until(lambda: manager.leases_asked_for() == 2, 20)
        full = manager.http.post("/api/chat", json=CHAT | {"model": "other", "stream": False})
        assert full.status_code == 503
        assert full.json()["error"] == (
            "server busy, please try again.  maximum pending requests exceeded"
        )
        assert full.headers["retry-after"]
        queued.close()
        assert until(lambda: len(manager.gateway_requests()) == 1, 20) <= 10
        first.close()
        assert until(lambda: not manager.gateway_requests(), 20) <= 10


def test_leaving_during_prefill_frees_the_engine(tmp_path: Path) -> None:
    with managing(tmp_path, FakeScript(hang_after=0)) as manager:
        connection = manager.raw(request_bytes("/api/chat", CHAT))
        until(lambda: manager.engine_runs() == 1, 20)
        connection.close()
        assert until(lambda: manager.engine_runs() == 0, 20) <= 10


def test_requests_in_parallel_do_not_mix(tmp_path: Path) -> None:
    with managing(tmp_path, FakeScript(token_s=0.002)) as manager:
        texts: dict[str, str] = {}

        def ask(word: str) -> None:
            body = {"model": "tiny", "prompt": word, "raw": True, "options": {"num_predict": 8}}
            lines = lines_of(manager.http.post("/api/generate", json=body))
            texts[word] = "".join(line["response"] for line in lines)

        words = [letter * 8 for letter in "abcdefgh"]
        threads = [threading.Thread(target=ask, args=(word,)) for word in words]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        # The scripted engine echoes the prompt.
        assert texts == {word: word for word in words}


def test_unloaded_models_leave_no_tokenizer_behind(tmp_path: Path) -> None:
    with managing(tmp_path, FakeScript(tokens=ids_of("ok"))) as manager:
        manager.http.post("/api/chat", json=CHAT | {"stream": False})
        assert manager.service.held_tokenizers()
        manager.http.post("/api/generate", json={"model": "tiny", "keep_alive": 0})
        until(lambda: not manager.service.held_tokenizers(), 20)


def test_cut_ends_streams_with_an_error_before_the_process_goes(tmp_path: Path) -> None:
    with managing(tmp_path, ENDLESS) as manager:
        with manager.http.stream("POST", "/api/chat", json=CHAT) as reply:
            lines = reply.iter_lines()
            assert json.loads(next(lines))["done"] is False
            manager.on_loop(manager.cut)
            rest = [json.loads(line) for line in lines]
        assert "shutting down" in rest[-1]["error"]
        assert not any(line.get("done") for line in rest)
