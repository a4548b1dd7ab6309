"""Nothing leaves this machine but what was asked for, and no log keeps what was said."""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import ids_of, managing

MARKER = "xylophone"
_seen: list[tuple[int, Any]] = []
_watching = [False]


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching[0] and event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        place = arguments[1] if event != "socket.getaddrinfo" else arguments[0]
        family = getattr(arguments[0], "family", -1)
        _seen.append((family, place))


def is_here(family: int, place: Any) -> bool:
    """A unix socket, or a loopback address or name."""
    host = place[0] if isinstance(place, tuple) else place
    return family == socket.AF_UNIX or str(host) in ("127.0.0.1", "::1", "localhost", "None")


def test_start_chat_lists_and_end_connect_to_nobody_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sys.addaudithook(_watch)  # cannot be taken away again, so it is told when to look
    _watching[0] = True
    try:
        with (
            caplog.at_level(logging.INFO),
            managing(tmp_path, FakeScript(tokens=ids_of(MARKER[::-1]))) as manager,
        ):
            messages = [{"role": "user", "content": MARKER}]
            body = {"model": "tiny", "messages": messages, "stream": False}
            reply = manager.http.post("/api/chat", json=body).json()
            assert reply["message"]["content"] == MARKER[::-1]
            for path in ("/api/tags", "/api/ps", "/metrics", "/api/ft/status", "/api/ft/search"):
                assert manager.http.get(path).status_code == 200
    finally:
        _watching[0] = False
    assert _seen
    assert [item for item in _seen if not is_here(*item)] == []
    assert "/api/chat" in caplog.text
    assert MARKER not in caplog.text
    assert MARKER[::-1] not in caplog.text
