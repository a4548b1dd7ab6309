"""While a model is loaded or reads its prompt, every streamed answer shows life in time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from ftman.gateway.stream import HEARTBEAT_S
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Manager, ids_of, managing

SILENCE_S = 0.8
BEAT_S = 0.05
USER = [{"role": "user", "content": "Hi"}]
STREAMS: list[tuple[str, dict[str, Any], str]] = [
    ("/api/generate", {"prompt": "Hi"}, '"done":true'),
    ("/api/chat", {"messages": USER}, '"done":true'),
    ("/v1/chat/completions", {"messages": USER}, "[DONE]"),
    ("/v1/completions", {"prompt": "Hi"}, "[DONE]"),
    ("/v1/responses", {"input": "Hi"}, "response.completed"),
    ("/v1/messages", {"messages": USER, "max_tokens": 9}, "message_stop"),
]
SCRIPTS = {
    "loading": FakeScript(tokens=ids_of("H"), load_s=SILENCE_S, load_steps=1),
    "prefill": FakeScript(tokens=ids_of("H"), token_s=SILENCE_S),
}


@dataclass(frozen=True)
class Heard:
    """One streamed answer. Units: seconds after the request."""

    path: str
    headers_s: float
    first_s: float
    text: str
    end: str


def listen(manager: Manager, path: str, body: dict[str, Any], end: str) -> Heard:
    """Ask on a connection of its own."""
    first_s, data = 0.0, b""
    with httpx.Client(base_url=manager.url, timeout=60, trust_env=False) as http:
        started_s = time.monotonic()
        with http.stream("POST", path, json=body | {"model": "tiny", "stream": True}) as reply:
            headers_s = time.monotonic() - started_s
            for piece in reply.iter_raw():
                first_s = first_s or time.monotonic() - started_s
                data += piece
    assert reply.status_code == 200
    return Heard(path, headers_s, first_s, data.decode(), end)


def test_the_promise_is_ten_seconds() -> None:
    assert HEARTBEAT_S <= 10


@pytest.mark.parametrize("phase", ["loading", "prefill"])
def test_the_first_byte_is_early_and_the_answer_whole(tmp_path: Path, phase: str) -> None:
    with (
        managing(tmp_path, SCRIPTS[phase], heartbeat_s=BEAT_S) as manager,
        ThreadPoolExecutor(len(STREAMS)) as pool,
    ):
        waiting = [pool.submit(listen, manager, *stream) for stream in STREAMS]
        for heard in [item.result() for item in waiting]:
            assert heard.headers_s < SILENCE_S * 0.8, heard
            assert heard.first_s < SILENCE_S * 0.8, heard
            assert heard.end in heard.text, heard
