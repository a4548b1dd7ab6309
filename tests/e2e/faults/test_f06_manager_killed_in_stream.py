"""F6: SIGKILL of the manager in the middle of an answer, with engines that outlive it or do not."""

from __future__ import annotations

import signal
import time

from ftman.config import Paths
from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.manager_process import (
    CHAT,
    Answer,
    Rig,
    ask,
    engine_pids,
    engines,
    fake,
    runs,
    send_signal,
    until,
)
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import ids_of, install

LONG = fake(FakeScript(tokens=ids_of("hello world ") * 30, token_s=0.005))
GONE_LIMIT_S = 20.0
RESTART_LIMIT_S = 2.0


@runs
def test_the_client_sees_a_broken_answer_and_the_next_manager_is_right(
    rig: Rig, num_points: int
) -> None:
    install(Paths(rig.home, rig.home / "models"))
    expected = rig.check_store()
    for number in range(num_points):
        after, adopt = rig.rng.randrange(1, 60), number % 2 == 0
        with rig.manager(LONG, FT_ADOPT=str(int(adopt))) as manager:

            def kill(answer: Answer, pid: int = manager.process.pid, after: int = after) -> None:
                if len(answer.lines) == after:
                    send_signal(pid, signal.SIGKILL)

            answer = ask(manager.url, CHAT, on_line=kill)
            manager.process.wait(10)
            pids = engine_pids(rig.home)
        invariants.ended_once(answer, may_break=True)
        assert answer.broken, (after, answer.lines[-1:])
        if not adopt:
            until(lambda: not engine_pids(rig.home), GONE_LIMIT_S)
        started = time.monotonic()
        with rig.manager(LONG, FT_ADOPT=str(int(adopt))) as manager:
            spent_s = time.monotonic() - started
            ledger.level("R6", "start to answer, s", spent_s, RESTART_LIMIT_S)
            assert spent_s <= 5 * RESTART_LIMIT_S
            shown = engines(manager.url)
            assert [item["name"] for item in shown] == (["tiny:latest"] if adopt else [])
            if adopt:
                assert engine_pids(rig.home) == pids
            until(lambda: all(item["ft"]["in_use"] == 0 for item in engines(manager.url)))
            invariants.answers_when_healthy(manager.url)
            if adopt:
                assert engine_pids(rig.home) == pids
        assert rig.check_store() == expected
