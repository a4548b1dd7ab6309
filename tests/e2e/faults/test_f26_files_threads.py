"""F26: no more open files, no more threads: refused with the reason, well again when there are.

A limit of processes (ulimit -u) binds nobody who runs as root, so threads that cannot be started
are played where they are started.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
from unittest import mock
from urllib.parse import urlsplit

import httpx
import pytest

from ftman.config import Paths
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import CHAT, FAKE, Rig, ask, runs, until
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Tiny, ids_of, install

NUM_FILES = 64
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""All of it is plain HTTP, and reading the usual authorities takes longer than the rest."""
_FEW_FILES = (
    "import os,resource,sys;n=int(sys.argv[1]);"
    "resource.setrlimit(resource.RLIMIT_NOFILE,(n,n));os.execv(sys.argv[2],sys.argv[2:])"
)
GOOD = FakeScript(tokens=ids_of("Hello world"))


def crowd(url: str, count: int) -> list[socket.socket]:
    """So many connections that never say a word."""
    place = urlsplit(url)
    found = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            found.append(socket.create_connection((place.hostname or "", place.port or 0), 5))
    return found


@runs
def test_connections_beyond_the_limit_are_refused_and_it_recovers(
    rig: Rig, num_points: int
) -> None:
    install(Paths(rig.home, rig.home / "models"))
    command = (sys.executable, "-S", "-c", _FEW_FILES, str(NUM_FILES), *FAKE)
    with rig.manager(command) as manager:
        invariants.answers_when_healthy(manager.url)
        before = invariants.vitals(manager.process.pid)
        for number in range(num_points):
            # More than there are files at all stop the accepting for a second; once is enough.
            most = 2 * NUM_FILES if number == 0 else NUM_FILES // 2 + 10
            idle = crowd(manager.url, rig.rng.randrange(NUM_FILES // 2 + 1, most))
            refused = refusal(manager.url)
            if refused is not None:  # beyond some more, a connection is closed without a word
                assert refused.status_code == 503
                assert refused.json()["code"] == "too_many_connections"
                invariants.told_why(refused)
                assert refused.headers["connection"] == "close"
            for connection in idle:
                connection.close()
            until(lambda: works(manager.url))
        invariants.answers_when_healthy(manager.url)
        invariants.ended_once(ask(manager.url, CHAT))
        now = invariants.vitals(manager.process.pid)
        assert now.fds <= before.fds + 3


def refusal(url: str) -> httpx.Response | None:
    """The refusal of a new connection, if it was put in words."""
    with contextlib.suppress(httpx.HTTPError):
        reply = httpx.get(f"{url}/api/version", trust_env=False, timeout=5, verify=NO_TLS)
        return reply if reply.status_code != 200 else None
    return None


def works(url: str) -> bool:
    """A new connection is served."""
    return (
        refusal(url) is None
        and httpx.get(f"{url}/api/version", trust_env=False, timeout=5, verify=NO_TLS).is_success
    )


@runs
def test_threads_that_cannot_start_are_a_refusal_with_a_reason(
    rig: Rig, num_points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = threading.Thread.start
    left = [0]

    def start(thread: threading.Thread) -> None:
        if left[0] and thread.name.startswith("asyncio_"):
            left[0] -= 1
            raise RuntimeError("can't start new thread")
        real(thread)

    others = tuple(Tiny(f"m{n}:latest", seed=n) for n in range(1, 3))
    with rig.inside(GOOD, (Tiny(), *others)) as manager:
        with mock.patch.object(threading.Thread, "start", start):
            for number in range(num_points):
                left[0] = rig.rng.randrange(1, 4)
                body = {"source": f"m{number % 2 + 1}", "destination": "copy"}
                reply = manager.http.post("/api/copy", json=body)
                if reply.status_code != 200:  # a thread that is there already may do it
                    invariants.told_why(reply)
                    assert reply.status_code == 503
                    assert "start new thread" in reply.json()["error"]
                left[0] = 0
                reply = manager.http.post("/api/copy", json=body)
                assert reply.status_code == 200, reply.text
        invariants.answers_when_healthy(manager.url)
