"""F25: too little memory for an engine, an engine that is ended for it, a manager under a limit.

No cgroup can be made here, and the kernel's own choice of a victim cannot be provoked without
harming others: the counter by which it is recognised is played, the SIGKILL is real.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import httpx
import pytest

from ftman.config import Paths
from ftman.supervisor import hardware
from ftman.supervisor.policy_events import Memory
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import CHAT, FAKE, LONG, Rig, ask, runs, until
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.ftman.gateway.serving import ids_of, install

GOOD = FakeScript(tokens=ids_of("Hello world"))
BODIES = 3
WHOLE = CHAT | {"stream": False}
ROOM_BYTES = 300 << 20
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
"""Threads would reserve 64 MB each, which counts as address space though nobody uses it."""
_CAPPED = (
    "import os,resource,sys;n=int(sys.argv[1]);"
    "resource.setrlimit(resource.RLIMIT_AS,(n,n));os.execv(sys.argv[2],sys.argv[2:])"
)


def capped(limit_bytes: int, command: tuple[str, ...]) -> tuple[str, ...]:
    """The same command with that much address space, as under `ulimit -v`."""
    return (sys.executable, "-S", "-c", _CAPPED, str(limit_bytes), *command)


@runs
def test_a_load_that_cannot_fit_is_refused_with_its_numbers(rig: Rig, num_points: int) -> None:
    with rig.inside(GOOD) as manager:
        for _ in range(num_points):
            total = rig.rng.randrange(1 << 10, 1 << 14)

            async def shrink(total: int = total) -> Any:
                seen, manager.service._supervisor._memory = (
                    manager.service._supervisor._memory,
                    lambda: Memory(total, total),
                )
                return seen

            before = manager.on_loop(shrink)
            reply = manager.http.post("/api/chat", json=WHOLE)
            assert reply.status_code == 507, reply.text
            invariants.told_why(reply)
            assert sum(ch.isdigit() for ch in reply.json()["error"]) >= 2

            async def grow(before: Any = before) -> None:
                manager.service._supervisor._memory = before

            manager.on_loop(grow)
        invariants.answers_when_healthy(manager.url)


@runs
@pytest.mark.parametrize("counted", [True, False, None])
def test_an_engine_ended_for_memory_is_said_to_be(
    rig: Rig, num_points: int, counted: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        True: "the system ran out of memory and ended it",
        False: "not by the kernel for want of memory",
        None: "often the system running out of memory",
    }
    kills = iter(range(1 << 30)) if counted else iter([7] * (1 << 20))
    monkeypatch.setattr(hardware, "oom_kills", lambda: None if counted is None else next(kills))
    points = max(1, num_points // 5)
    dying = [
        FakeScript(tokens=GOOD.tokens, die_at=rig.rng.choice(("load", "token")), die_after=2)
        for _ in range(points)
    ]
    with rig.inside([*dying, GOOD]) as manager:
        for _ in range(points):
            reply = manager.http.post("/api/chat", json=WHOLE)
            assert reply.status_code in (500, 503), reply.text
            invariants.told_why(reply)
            if "again for" in reply.text:  # the third in a row: the first cause is told
                break
            assert "was killed by SIGKILL" in reply.json()["error"], reply.text
            assert told[counted] in reply.json()["error"]


def limited_engine(limit_bytes: int) -> Callable[..., list[str]]:
    """FakeLauncher.command whose engine has so much address space."""
    real = FakeLauncher.command

    def command(self: FakeLauncher, *given: Any) -> list[str]:
        return list(capped(limit_bytes, tuple(real(self, *given))))

    return command


def test_an_engine_under_a_limit_that_it_cannot_keep_tells_why(rig: Rig) -> None:
    with (
        mock.patch.object(FakeLauncher, "command", limited_engine(1 << 25)),
        rig.inside(GOOD) as manager,
    ):
        reply = manager.http.post("/api/chat", json=WHOLE)
        assert reply.status_code in (500, 503), reply.text
        invariants.told_why(reply)
        assert manager.http.get("/health").json() == {"status": "ok"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_manager_under_a_limit_refuses_what_is_too_much_and_lives(rig: Rig) -> None:
    num_points = LONG // 10  # each takes seconds
    install(Paths(rig.home, rig.home / "models"))
    with rig.manager(capped(1 << 30, FAKE), **ONE_ARENA) as manager:
        invariants.answers_when_healthy(manager.url)
        with open(f"/proc/{manager.process.pid}/statm") as file:  # noqa: PTH123
            held = int(file.read().split()[0]) << 12
    answers: list[httpx.Response] = []
    with rig.manager(capped(held + ROOM_BYTES, FAKE), **ONE_ARENA) as manager:

        def send(size: int) -> None:
            messages = b",".join([b'{"role":"user","content":"x"}'] * (size // 30))
            body = b'{"model":"tiny","stream":false,"messages":[' + messages + b"]}"
            answers.append(
                httpx.post(f"{manager.url}/api/chat", content=body, trust_env=False, timeout=100)
            )

        for _ in range(num_points):
            threads = [
                threading.Thread(target=send, args=(rig.rng.randrange(1 << 20, 20 << 20),))
                for _ in range(BODIES)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(100)
        assert len(answers) == BODIES * num_points, "a request got no answer"
        for reply in answers:
            assert reply.status_code in (200, 400, 413, 503), reply.text
        until(lambda: ask(manager.url, CHAT).complete)
        invariants.answers_when_healthy(manager.url)
