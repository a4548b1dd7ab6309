"""F20: hostile bytes on raw sockets against the real process: quick refusals, little memory."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from ftman.config import Paths
from ftman.gateway.body import MAX_BODY_BYTES
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import FAKE, ManagerProcess, Rig, runs
from tests.ftman.gateway.serving import install

MEMORY_BYTES = MAX_BODY_BYTES + (8 << 20)
"""A body without a length is only known to be too large when the limit has arrived."""
ANSWER_LIMIT_S = 30.0
ALLOWED = {400, 404, 408, 411, 413, 431, 501, 503, 505}
TARGETS = ("/api/chat", "/api/generate", "/api/create", "/api/pull", "/v1/chat/completions")


def head(path: str, *lines: str) -> bytes:
    """A request head."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", *lines, "", ""]).encode()


def sized(path: str, body: bytes, announced: int | None = None) -> Iterator[bytes]:
    """A body with a Content-Length, true or not."""
    yield head(path, f"Content-Length: {len(body) if announced is None else announced}")
    for start in range(0, len(body), 1 << 20):
        yield body[start : start + (1 << 20)]


def gigabyte(path: str, rng: random.Random) -> Iterator[bytes]:
    """1 GB, announced and sent."""
    yield head(path, "Content-Length: 1000000000")
    block = rng.randbytes(1 << 20)
    for _ in range(954):
        yield block


def chunks_without_end(path: str, rng: random.Random) -> Iterator[bytes]:
    """Chunks for as long as anybody reads them."""
    yield head(path, "Transfer-Encoding: chunked")
    block = rng.randbytes(1 << 20)
    for _ in range(2000):
        yield b"100000\r\n" + block + b"\r\n"


def nested(path: str, rng: random.Random) -> Iterator[bytes]:
    """10^6 brackets or braces."""
    opening = rng.choice([b"[", b'{"a":'])
    return sized(path, b'{"model":"tiny","x":' + opening * 1_000_000)


def many_messages(path: str, rng: random.Random) -> Iterator[bytes]:
    """10^6 messages."""
    item = rng.choice([b"{}", b'{"role":"user","content":""}', b"null"])
    return sized(path, b'{"model":"tiny","messages":[' + b",".join([item] * 1_000_000) + b"]}")


def wrong_values(path: str, rng: random.Random) -> Iterator[bytes]:
    """Numbers that are none, duplicate keys, half a code point, a BOM."""
    bodies = (
        b'{"model":"tiny","options":{"temperature":NaN}}',
        b'{"model":"tiny","options":{"num_ctx":-1e999}}',
        b'{"model":1,"model":"nosuch","MODEL":[]}',
        b'{"model":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"model":"nosuch"}',
        b'{"model":"nosuch","keep_alive":9223372036854775808}',
        b'{"model":"nosuch"' + b" " * 100_000,
        b"\0" * 1000,
    )
    return sized(path, rng.choice(bodies))


def lying_length(path: str, rng: random.Random) -> Iterator[bytes]:
    """More is sent than announced: the rest is a request of its own, and a bad one."""
    return sized(path, b'{"model":"nosuch"}' + rng.randbytes(50), 18)


def long_head(path: str, rng: random.Random) -> Iterator[bytes]:
    """1 MB of header, in one line or in many."""
    lines = rng.choice([["X: " + "a" * 1_000_000], [f"X-{n}: b" for n in range(80_000)]])
    yield head(path, *lines)


def two_lengths(path: str, rng: random.Random) -> Iterator[bytes]:
    """Smuggling: two ideas of where the body ends."""
    other = rng.choice(["Transfer-Encoding: chunked", "Content-Length: 7"])
    yield head(path, "Content-Length: 18", other) + b'{"model":"nosuch"}\r\n'


ATTACKS = (
    gigabyte,
    chunks_without_end,
    nested,
    many_messages,
    wrong_values,
    lying_length,
    long_head,
    two_lengths,
)


def attack(url: str, pieces: Iterator[bytes]) -> tuple[int, float]:
    """Send until refused; returns the status (0 = closed without one) and the seconds it took."""
    place = urlsplit(url)
    assert place.hostname is not None
    started = time.monotonic()
    connection = socket.create_connection((place.hostname, place.port or 0), timeout=ANSWER_LIMIT_S)
    with connection, contextlib.suppress(ConnectionError):
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        try:
            reply = connection.recv(4096)
        except TimeoutError:
            return -1, time.monotonic() - started
        seconds = time.monotonic() - started
        return (int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.1 ") else 0), seconds
    return 0, time.monotonic() - started


def warmed_up(manager: ManagerProcess) -> invariants.Vitals:
    """Every route taken once, so that what is measured is the attack."""
    rng = random.Random(0)
    for path in TARGETS:
        attack(manager.url, wrong_values(path, rng))
    invariants.answers_when_healthy(manager.url)
    return invariants.vitals(manager.process.pid)


@runs
def test_every_kind_is_refused_quickly_and_costs_little(rig: Rig, num_points: int) -> None:
    install(Paths(rig.home, rig.home / "models"))
    with rig.manager(FAKE) as manager:
        before = warmed_up(manager)
        for kind in ATTACKS * max(1, num_points // 10):
            path = rig.rng.choice(TARGETS)
            status, seconds = attack(manager.url, kind(path, rig.rng))
            assert status in ALLOWED | {0, 200}, (kind.__name__, path, status)
            # A pull says what is wrong inside of its stream; to generate, `messages` is any unknown
            # field and is ignored.
            ignored = kind is many_messages and path == "/api/generate"
            fine = path == "/api/pull" or kind is wrong_values or ignored
            assert status != 200 or fine, (kind.__name__, path)
            assert seconds < ANSWER_LIMIT_S, (kind.__name__, path)
            peak = invariants.vitals(manager.process.pid).peak
            assert peak <= before.rss + MEMORY_BYTES, (kind.__name__, path, peak - before.rss)
        invariants.answers_when_healthy(manager.url)
        assert " 500 " not in manager.log
        assert json.loads((rig.home / "run" / "manager.json").read_text())
