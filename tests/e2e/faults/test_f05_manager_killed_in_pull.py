"""F5: SIGKILL of the manager in a pull, at random moments and at every named step."""

from __future__ import annotations

import signal
import time

from ftman.config import Paths
from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.manager_process import (
    Answer,
    Rig,
    arrived,
    begun_at,
    ended_well,
    runs,
    send_signal,
)
from tests.e2e.faults.real_models import wide_gguf
from tests.e2e.processes import REAL
from tests.fakes.hub import BadHub
from tests.ftman.gateway.serving import Tiny, install

PATH = "/x/wide.gguf"
STEPS = (
    "pull.resolved",
    "pull.after_range",
    "pull.before_convert",
    "pull.before_verify",
    "catalog.before_commit",
    "catalog.after_commit",
    "files.rename:{}",
    "files.fsync:{}",
    "files.write:{}",
)
LOST_PER_RANGE, LOST_IN_ALL, OPEN_RANGES = 8 << 20, 64 << 20, 8
"""R1, and how many ranges one pull has open."""


@runs
def test_a_killed_pull_loses_little_and_shows_nothing_half(
    rig: Rig, hub: BadHub, num_points: int
) -> None:
    data = wide_gguf(rig.root / "wide.gguf")
    url = hub.add(PATH, data, f"slow:{3 * len(data)}")
    install(Paths(rig.home, rig.home / "models"), Tiny("earlier:latest"))
    earlier = rig.check_store()
    kills = 0
    for number in range(num_points):
        if number % 2:
            plan = f"{rig.rng.choice(STEPS).format(rig.rng.randrange(8, 20))}=kill"
            kills += killed_at_a_step(rig, url, plan)
        else:
            kills += killed_when_so_much_is_there(rig, url, rig.rng.uniform(0.01, 0.99))
        invariants.acknowledged(rig.check_store(), earlier, {*earlier, "wide/latest"})
    assert kills
    with rig.manager(REAL) as manager:
        ended_well(rig.pull(manager.url, url))
    assert set(rig.check_store()) == {*earlier, "wide/latest"}
    invariants.no_orphans(rig.home / "models")
    lost = kills * min(OPEN_RANGES * LOST_PER_RANGE, LOST_IN_ALL, len(data))
    assert hub.bytes_sent(PATH) <= len(data) + lost
    per_kill = (hub.bytes_sent(PATH) - len(data)) / kills
    ledger.level("R1", "bytes lost by a kill", per_kill, LOST_IN_ALL)


@runs
def test_a_clean_stop_in_a_pull_fetches_nothing_twice(
    rig: Rig, hub: BadHub, num_points: int
) -> None:
    data = wide_gguf(rig.root / "wide.gguf")
    url = hub.add(PATH, data, f"slow:{3 * len(data)}")
    reached = 0.0
    for _ in range(num_points // 4):
        stopped, answer = cut_by_interrupts(rig, url, rig.rng.uniform(reached, 0.95))
        assert begun_at(answer) >= reached
        ledger.level("R1", "share lost by a clean stop", max(0, reached - begun_at(answer)), 0)
        invariants.ended_once(answer)
        if answer.complete:
            break
        assert "shutting down" in answer.error, answer.lines[-1]
        reached = stopped
    with rig.manager(REAL) as manager:
        answer = rig.pull(manager.url, url)
        ended_well(answer)
        assert begun_at(answer) >= reached


def killed_when_so_much_is_there(rig: Rig, url: str, fraction: float) -> int:
    """Kill when a fraction has arrived. Returns 1 if the pull was cut."""
    with rig.manager(REAL) as manager:

        def on_line(answer: Answer) -> None:
            if arrived(answer) >= fraction:
                send_signal(manager.process.pid, signal.SIGKILL)

        answer = rig.pull(manager.url, url, on_line)
        if answer.broken:
            manager.process.wait(10)
    return cut_or_done(answer)


def killed_at_a_step(rig: Rig, url: str, plan: str) -> int:
    """Kill at a named point. Returns 1 if the pull reached it."""
    with rig.manager(REAL, FT_FAULTS=plan) as manager:
        answer = rig.pull(manager.url, url)
        if answer.broken:
            assert manager.process.wait(10) == -signal.SIGKILL, plan
    return cut_or_done(answer)


def cut_or_done(answer: Answer) -> int:
    """1 for a cut pull; never an error: nothing but the manager was hurt."""
    if answer.broken:
        # The last lines may have been on their way when the kill came.
        return int("success" not in answer.statuses)
    ended_well(answer)
    return 0


def cut_by_interrupts(rig: Rig, url: str, fraction: float) -> tuple[float, Answer]:
    """Interrupt twice when a fraction has arrived; returns what was there, and the answer."""
    stopped: list[float] = []
    with rig.manager(REAL) as manager:

        def on_line(answer: Answer) -> None:
            if arrived(answer) >= fraction and not stopped:
                stopped.append(arrived(answer))
                send_signal(manager.process.pid, signal.SIGINT)
                time.sleep(0.05)
                send_signal(manager.process.pid, signal.SIGINT)

        answer = rig.pull(manager.url, url, on_line)
        if stopped:
            assert manager.process.wait(25) == 0
    return (stopped[0] if stopped else 1.0), answer
