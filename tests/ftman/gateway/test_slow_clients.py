"""Clients that send or read too slowly are let go; others are not disturbed."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftman.gateway import app, protocol
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Manager, managing

LIMIT_S = 0.3


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    """A manager with all patience cut to LIMIT_S."""
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(protocol, "WRITE_TIMEOUT_S", LIMIT_S)
    monkeypatch.setattr(app, "BODY_CHUNK_TIMEOUT_S", LIMIT_S)
    with managing(tmp_path, FakeScript()) as manager:
        yield manager


def seconds_until_closed(connection: socket.socket) -> float:
    """How long the server keeps the connection; the client stays silent."""
    started = time.monotonic()
    connection.settimeout(20)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return time.monotonic() - started


def one_reply(connection: socket.socket) -> bytes:
    """A whole reply of /api/version."""
    connection.settimeout(20)
    data = b""
    while b'"version"' not in data:
        data += connection.recv(65536)
    return data


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: local"])
def test_a_head_that_does_not_come_closes_the_connection(impatient: Manager, sent: bytes) -> None:
    with impatient.raw(sent) as connection:
        assert LIMIT_S * 0.8 <= seconds_until_closed(connection) < 10


def test_half_a_second_head_counts_too(impatient: Manager) -> None:
    one = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with impatient.raw(one + one[:20]) as connection:
        assert seconds_until_closed(connection) < 10


def test_an_idle_connection_between_requests_is_kept(impatient: Manager) -> None:
    one = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with impatient.raw(one) as connection:
        assert b"200 OK" in one_reply(connection)
        deadline = time.monotonic() + 2 * LIMIT_S
        while time.monotonic() < deadline:
            time.sleep(0.05)
        connection.sendall(one)
        assert b"200 OK" in one_reply(connection)


def test_a_body_that_stalls_is_408(impatient: Manager) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
    with impatient.raw(head) as connection:
        connection.settimeout(20)
        assert b" 408 " in connection.recv(65536)


def test_a_reader_that_stops_is_cut(impatient: Manager) -> None:
    body = b'{"model": "tiny", "prompt": "' + b"x" * 100 + b'", "raw": true, "logprobs": true}'
    head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.connect(("127.0.0.1", impatient.port))
    with connection:
        connection.sendall(head.encode() + body)
        deadline = time.monotonic() + 8
        while impatient.gateway_requests() or time.monotonic() < deadline - 7.8:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert impatient.engine_runs() == 0
