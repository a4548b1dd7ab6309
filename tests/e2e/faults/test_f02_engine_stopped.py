"""F2: SIGSTOP of the engine in an answer; SIGCONT before it is given up on, or after."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.manager_process import (
    Answer,
    Rig,
    engine_pid,
    is_alive,
    runs,
    send_signal,
    until,
)
from tests.e2e.faults.talk import Talk, models_named, random_word
from tests.fakes.engine import FakeScript
from tests.ftman.supervisor.harness import QUICK

LANES = 5
TOKENS = 100
"""So many that an engine is not done before a late stop reaches it."""
WEDGE_S = 0.6
TIMINGS = replace(QUICK, poll_s=0.05, probe_s=0.1, wedge_s=WEDGE_S)
"""R3's 30 s are this setting; what comes on top of it is the same."""


@dataclass(frozen=True)
class Stop:
    """One stop. pause_s None: it is continued only after it was replaced."""

    talk: Talk
    after: int
    pause_s: float | None


@runs
def test_a_stopped_engine_is_replaced_and_answers_nobody_later(rig: Rig, num_points: int) -> None:
    stops = [
        Stop(
            Talk(f"m{number % LANES}", random_word(rig.rng), TOKENS),
            rig.rng.randrange(1, 20),
            rig.rng.uniform(0.01, 0.15) if number % 3 == 1 else None,
        )
        for number in range(num_points)
    ]
    with (
        rig.inside(
            FakeScript(token_s=0.01), models_named(LANES), TIMINGS, max_loaded_models=LANES
        ) as manager,
        ThreadPoolExecutor(LANES) as pool,
    ):
        for start in range(0, num_points, LANES):
            # One lane is one model: its engine is stopped by nobody else meanwhile.
            list(
                pool.map(
                    lambda stop: one_stop(rig, manager.url, stop), stops[start : start + LANES]
                )
            )
        invariants.answers_when_healthy(manager.url, "m0")


def one_stop(rig: Rig, url: str, stop: Stop) -> None:
    """Stop the engine after some lines, and see what its client and the next one get."""
    model, at = stop.talk.model, []
    pids: list[int] = []

    def on_line(answer: Answer) -> None:
        if len(answer.lines) == stop.after and not at:
            pids.append(engine_pid(rig.home, model))
            send_signal(pids[0], signal.SIGSTOP)
            at.append(time.monotonic())
            if stop.pause_s is not None:
                threading.Timer(stop.pause_s, send_signal, (pids[0], signal.SIGCONT)).start()

    answer = stop.talk.ask(url, on_line)
    assert at, answer.lines
    if stop.pause_s is not None:
        assert answer.complete, answer.lines[-1]
        assert engine_pid(rig.home, model) == pids[0]
    else:
        assert "is replaced" in answer.error, answer.lines[-1]
        over_s = answer.ended_s - at[0] - WEDGE_S
        ledger.level("R3", "noticed after the setting, s", over_s, 6)
        send_signal(pids[0], signal.SIGCONT)
        until(lambda: not is_alive(pids[0]), 5)
    assert Talk(model, "again", 5).ask(url).complete
    invariants.one_engine_per_key(rig.home)
