"""Hostile bytes on raw sockets and hostile JSON on every POST route: never a 500 of ours."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from ftman.gateway.app import ROUTES
from ftman.gateway.body import MAX_BODY_BYTES
from tests.ftman.gateway.serving import Manager

POSTS = sorted({(route.method, route.path) for route in ROUTES if route.body == "whole"})
VALUES: list[Any] = [
    None,
    True,
    -1,
    2**63,
    1e300,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    {"a": 1},
    [None],
]
KEYS = (
    "model",
    "name",
    "prompt",
    "messages",
    "stream",
    "options",
    "format",
    "keep_alive",
    "think",
    "tools",
    "images",
    "context",
    "raw",
    "system",
    "template",
    "suffix",
    "logprobs",
    "top_logprobs",
    "truncate",
    "n",
    "stop",
    "temperature",
    "logit_bias",
    "seed",
    "max_tokens",
    "response_format",
    "source",
    "destination",
    "from",
    "files",
    "parameters",
    "license",
    "stream_options",
)
EXPECTED_500 = ("invalid format", 'option "', "file does not exist", "pull")


def answer(manager: Manager, data: bytes, *, wait_s: float = 3.0) -> bytes:
    """Everything the server says until it closes or a reply is complete."""
    with manager.raw(data) as connection:
        connection.settimeout(wait_s)
        head = b""
        try:
            while b"\r\n\r\n" not in head:
                piece = connection.recv(65536)
                if not piece:
                    break
                head += piece
        except (TimeoutError, ConnectionResetError):
            pass
        return head


def status_of(head: bytes) -> int:
    return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0


@pytest.mark.parametrize(
    ("data", "allowed"),
    [
        (b"nonsense\r\n\r\n", {400}),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000, {0, 400, 431}),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n", {0, 400, 431}),
        (b"GET / HTTP/9.9\r\n\r\n", {200, 400, 505}),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n", {403}),
        (b"POST /api/chat HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", {400}),
        (b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n[]", {400}),
        (
            b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz",
            {0, 400},
        ),
        (
            b"POST /api/ft/gc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            {400},
        ),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {0, 400}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 404, 405, 505}),
        (b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", {405}),
        (b"GET /%00%0a HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}),
        (b"GET /v1/models/..%2f..%2fetc HTTP/1.1\r\nHost: localhost\r\n\r\n", {404}),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
         b"Connection: upgrade\r\n\r\n", {200, 400, 426}),
    ],
)  # fmt: skip
def test_raw_bytes(manager: Manager, data: bytes, allowed: set[int]) -> None:
    assert status_of(answer(manager, data, wait_s=0.5)) in allowed
    assert manager.http.get("/").status_code == 200


def test_announced_gigabytes_are_refused_before_they_are_read(manager: Manager) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
    started = time.monotonic()
    assert status_of(answer(manager, head)) == 413
    assert time.monotonic() - started < 10


def test_chunked_gigabytes_are_refused_at_the_limit(manager: Manager) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    with manager.raw(head + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
        block = bytes(1 << 20)
        try:
            for _ in range((MAX_BODY_BYTES >> 20) + 2):
                connection.sendall(b"100000\r\n" + block + b"\r\n")
            reply = connection.recv(4096)
        except ConnectionError:
            return  # closed in the middle: refused, too
    assert status_of(reply) == 413


def test_pipelined_requests_are_answered_in_order(manager: Manager) -> None:
    one = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with manager.raw(one * 3) as connection:
        connection.settimeout(5)
        data = b""
        while data.count(b'"version"') < 3:
            data += connection.recv(65536)
    assert data.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize(("method", "path"), POSTS)
def test_random_json_is_never_our_fault(manager: Manager, method: str, path: str) -> None:
    rng = random.Random(path)
    for _ in range(15):
        body = {key: rng.choice(VALUES) for key in rng.sample(KEYS, rng.randint(0, 6))}
        if rng.random() < 0.5:
            body["model"] = "tiny"
        reply = manager.http.request(method, path, content=json.dumps(body).encode())
        if reply.status_code == 500:
            assert any(text in reply.text for text in EXPECTED_500), (body, reply.text)
            assert "internal error" not in reply.text
        assert reply.status_code in (200, 400, 403, 404, 500, 501), (body, reply.text)


@pytest.mark.parametrize(("method", "path"), POSTS)
def test_deep_nesting_and_bad_utf8(manager: Manager, method: str, path: str) -> None:
    for data in (b'{"model":' + b"[" * 200_000, b'{"model": "\xff\xfe"}', b'{"a":1,"a":2,"A":3}'):
        reply = manager.http.request(method, path, content=data)
        assert reply.status_code in (200, 400, 403, 404, 413, 501), reply.text


def test_a_million_messages_end_in_a_clear_error(manager: Manager) -> None:
    data = b'{"model":"tiny","messages":[' + b",".join([b"{}"] * 1_000_000) + b"]}"
    started = time.monotonic()
    reply = manager.http.post("/v1/chat/completions", content=data, timeout=30)
    assert reply.status_code == 413
    assert "more than 250000 objects" in reply.json()["error"]["message"]
    assert time.monotonic() - started < 10
