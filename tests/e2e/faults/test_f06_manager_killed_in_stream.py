"""F6: SIGKILL of the manager in the middle of an answer, with engines that outlive it or do not."""

from __future__ import annotations

import signal
import time

from ftman.config import Paths
from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.forks import Forks
from tests.e2e.faults.manager_process import (
    CHAT,
    Answer,
    Rig,
    ask,
    engine_pids,
    engines,
    runs,
    until,
)
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import ids_of, install

LONG = FakeScript(tokens=ids_of("hello world ") * 30, token_s=0.005)
GONE_LIMIT_S = 20.0
RESTART_LIMIT_S = 2.0


@runs
def test_the_client_sees_a_broken_answer_and_the_next_manager_is_right(
    rig: Rig, num_points: int
) -> None:
    install(Paths(rig.home, rig.home / "models"))
    expected = rig.check_store()
    with Forks(LONG) as forks:
        for number in range(num_points):
            one_kill(rig, forks, adopt=number % 2 == 0)
            assert rig.check_store() == expected


def one_kill(rig: Rig, forks: Forks, adopt: bool) -> None:
    """Kill a manager after some lines of an answer, and see what the next one finds."""
    after = rig.rng.randrange(1, 60)
    with rig.forked(forks, FT_ADOPT=str(int(adopt))) as manager:

        def kill(answer: Answer) -> None:
            if len(answer.lines) == after:
                manager.signal(signal.SIGKILL)

        answer = ask(manager.url, CHAT, on_line=kill)
        manager.wait()
        pids = engine_pids(rig.home)
    invariants.ended_once(answer, may_break=True)
    assert answer.broken, (after, answer.lines[-1:])
    if not adopt:
        until(lambda: not engine_pids(rig.home), GONE_LIMIT_S)
    started = time.monotonic()
    with rig.forked(forks, FT_ADOPT=str(int(adopt))) as manager:
        spent_s = time.monotonic() - started
        ledger.level("R6", "answers after a fork, s", spent_s, RESTART_LIMIT_S)
        assert spent_s <= 5 * RESTART_LIMIT_S
        shown = engines(manager.url)
        assert [item["name"] for item in shown] == (["tiny:latest"] if adopt else [])
        if adopt:
            assert engine_pids(rig.home) == pids
        until(lambda: all(item["ft"]["in_use"] == 0 for item in engines(manager.url)))
        invariants.answers_when_healthy(manager.url)
        if adopt:
            assert engine_pids(rig.home) == pids
