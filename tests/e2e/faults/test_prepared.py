"""The prepared engine under the faults: its death, its manager's, a disk that refuses, an upgrade.

What it is for is tested in tests/ftman/supervisor/test_prepared.py. The managers of all other fault
tests keep none.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from unittest import mock

import httpx
import pytest

from ftman import faults
from tests.e2e.faults import invariants
from tests.e2e.faults.forks import Forks
from tests.e2e.faults.manager_process import (
    SHORT,
    Rig,
    engine_pids,
    engines,
    in_background,
    runs,
    send_signal,
    until,
)
from tests.e2e.faults.talk import Talk, models_named, random_word
from tests.e2e.faults.test_f08_failing_calls import KINDS, Counted
from tests.e2e.processes import REAL
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.ftman.gateway.serving import Manager, install
from tests.ftman.supervisor.harness import QUICK

QUIET_S = 0.02
TIMINGS = replace(QUICK, quiet_s=QUIET_S)
SCRIPT = FakeScript(load_s=0.05, token_s=0.002)
WINDOWS = (256, 384, 512)
WAITING = FakeLauncher(waits=True).waiting()


@pytest.fixture
def manager(rig: Rig) -> Iterator[Manager]:
    """One that keeps an engine prepared, and one model loaded at most."""
    with (
        mock.patch.object(FakeLauncher, "waiting", return_value=WAITING),
        rig.inside(SCRIPT, models_named(2), TIMINGS, max_loaded_models=1) as started,
    ):
        yield started


def prepared_pid(manager: Manager) -> int:
    """The process that waits in a manager of this process, once there is one."""
    return int(until(lambda: manager.service._supervisor.prepared_pid))


def of_nobody(rig: Rig) -> list[str]:
    """Living processes of the store that no record of an engine names."""
    known = {str(pid) for pid in engine_pids(rig.home)}
    return [p for p in invariants.processes_of(rig.home) if p.partition(" ")[0] not in known]


@runs
def test_a_killed_manager_leaves_none_behind(rig: Rig, num_points: int) -> None:
    for model in models_named(2):
        install(rig.paths, model)
    with Forks(SCRIPT, QUIET_S) as forks:
        for number in range(num_points):
            environment = rig.environment(FT_ADOPT=rig.rng.choice("01"))
            manager = forks.start(rig.home, environment)
            talk = Talk(f"m{number % 2}", random_word(rig.rng), 30)
            asking = in_background(partial(talk.ask, manager.url, may_break=True))
            time.sleep(rig.rng.uniform(0, 0.3))
            manager.signal(signal.SIGKILL)
            manager.wait()
            asking.join(40)
            invariants.no_traceback(manager.log)
            until(lambda: not of_nobody(rig), invariants.STOP_LIMIT_S)
        with rig.forked(forks) as last:
            for number in range(2):
                assert Talk(f"m{number}", "again", 3).ask(last.url).complete
            until(lambda: of_nobody(rig))  # that is the next one
    rig.check_store()


@runs
def test_one_that_is_killed_at_any_moment_breaks_no_answer(
    rig: Rig, manager: Manager, num_points: int
) -> None:
    for number in range(num_points):
        manager.service._supervisor._prepared._deaths = 0  # three in a row would be the last
        pid = prepared_pid(manager)
        talk = Talk(f"m{number % 2}", random_word(rig.rng), 30)
        killing = threading.Timer(rig.rng.uniform(0, 0.2), send_signal, (pid, signal.SIGKILL))
        killing.start()
        answer = talk.ask(manager.url)
        killing.join()
        assert answer.complete or "SIGKILL" in answer.error, answer.lines[-1]
        assert Talk(talk.model, "again", 3).ask(manager.url).complete
    assert len(of_nobody(rig)) <= 1


@pytest.mark.slow
def test_one_that_stands_still_is_replaced(rig: Rig, manager: Manager) -> None:
    for number in range(SHORT):
        pid = prepared_pid(manager)
        send_signal(pid, signal.SIGSTOP)
        answer = Talk(f"m{number % 2}", random_word(rig.rng)).ask(manager.url)
        assert "did not greet" in answer.error, answer.lines[-1]
        assert Talk(f"m{number % 2}", "again", 3).ask(manager.url).complete
    assert len(of_nobody(rig)) <= 1


@runs
def test_a_disk_that_refuses_at_the_handing_over_leaves_no_process(
    rig: Rig, manager: Manager, num_points: int
) -> None:
    counted = Writing()
    for number in range(num_points + 1):  # the first one is whole
        prepared_pid(manager)
        nth = rig.rng.randrange(1, counted.seen + 1) if number else 0
        fault = Writing(nth, rig.rng.choice(KINDS))
        window = WINDOWS[number % len(WINDOWS)]
        body = Talk(f"m{number % 2}", random_word(rig.rng)).body | {"stream": False}
        body["options"] = {"num_ctx": window, "num_predict": 5}
        faults.listen(fault)
        try:
            reply = manager.http.post("/api/generate", json=body)
        finally:
            faults.listen(None)
        if not number:
            counted = fault
        if reply.status_code != 200:
            invariants.told_why(reply)
            reply = until(partial(whole, manager, body))
        (loaded,) = engines(manager.url)
        assert loaded["context_length"] == window
        until(lambda: len(of_nobody(rig)) <= 1)


class Writing(Counted):
    """Of the calls that add to a disk: one that is full still removes."""

    def __call__(self, point: str) -> None:
        if point != "files.unlink":
            super().__call__(point)


def whole(manager: Manager, body: dict[str, object]) -> httpx.Response | None:
    """The answer, if it is one."""
    reply = manager.http.post("/api/generate", json=body)
    return reply if reply.status_code == 200 else None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_real_one_ends_with_its_manager_whatever_it_does(rig: Rig) -> None:
    for number in range(2 * SHORT):
        with rig.manager(REAL, FT_PREPARE_ENGINE="auto", FT_ADOPT=str(number % 2)) as manager:
            until(lambda: of_nobody_but(rig, manager.process.pid))
            time.sleep(rig.rng.uniform(0, 4))  # it imports, and then it waits
            os.kill(manager.process.pid, signal.SIGKILL)
            manager.process.wait(10)
            until(lambda: not of_nobody(rig), invariants.STOP_LIMIT_S)


def of_nobody_but(rig: Rig, pid: int) -> list[str]:
    """of_nobody, less the manager."""
    return [item for item in of_nobody(rig) if item.partition(" ")[0] != str(pid)]
