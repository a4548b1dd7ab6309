"""F17: two managers on one store, two clients at one pull, removal and clean-up in the middle."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from pathlib import Path

import httpx

from ftman.config import Paths
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import (
    CHAT,
    FAKE,
    Answer,
    Rig,
    arrived,
    ask,
    ended_well,
    fake,
    in_background,
    runs,
    until,
)
from tests.e2e.faults.real_models import wide_gguf
from tests.e2e.faults.test_f15_port_taken import environment, launch
from tests.e2e.processes import ROOT
from tests.fakes.engine import FakeScript
from tests.fakes.hub import BadHub
from tests.ftman.gateway.serving import Tiny, ids_of, install

PATH = "/x/wide.gguf"
PLAN_BYTES = (4 << 20) + 1
"""Read on their own, before anything is fetched to stay."""
SLOW = fake(FakeScript(tokens=ids_of("hello world ") * 30, token_s=0.003))


@runs
def test_of_many_managers_on_one_store_one_wins(rig: Rig, num_points: int) -> None:
    for _ in range(-(-num_points // 3)):
        racers = []
        for _ in range(3):
            racers.append(launch(rig.home, "127.0.0.1:0"))
            time.sleep(rig.rng.uniform(0, 0.03))
        try:
            until(lambda racers=racers: sum(r.poll() is None for r in racers) == 1, 30)
            winner = next(racer for racer in racers if racer.poll() is None)
            # Only a manager that has come up ends in order when it is told to.
            until(lambda pid=winner.pid: recorded_pid(rig.home) == pid)
            for racer in racers:
                if racer is not winner:
                    assert racer.stderr is not None
                    told = racer.stderr.read()
                    assert racer.returncode == 1
                    assert "is in use by another ft manager (pid " in told, told
        finally:
            for racer in racers:
                racer.terminate()
                racer.communicate(timeout=60)
        assert winner.returncode == 0
        invariants.nothing_is_left(rig.home, [])


@runs
def test_two_clients_at_one_pull_fetch_it_once(rig: Rig, hub: BadHub, num_points: int) -> None:
    data = wide_gguf(rig.root / "wide.gguf")
    url = hub.add(PATH, data, f"slow:{3 * len(data)}")
    with rig.manager(SLOW) as manager:
        for number in range(num_points):
            before = hub.bytes_sent(PATH)
            pull_twice(rig, manager.url, url, rig.rng.uniform(0, 0.9))
            assert hub.bytes_sent(PATH) - before <= len(data) + PLAN_BYTES, number
            assert delete(manager.url, "wide") == 200
        assert rig.check_store() == {}


@runs
def test_removal_in_a_pull_and_in_an_answer_harms_neither(
    rig: Rig, hub: BadHub, num_points: int
) -> None:
    data = wide_gguf(rig.root / "wide.gguf")
    url = hub.add(PATH, data, f"slow:{3 * len(data)}")
    paths = Paths(rig.home, rig.home / "models")
    install(paths, Tiny("other:latest", seed=1))
    too_late = 0
    with rig.manager(SLOW) as manager:
        for _ in range(num_points):
            install(paths)
            codes, answer = disturbed(rig, manager.url, url, rig.rng.uniform(0, 0.9))
            invariants.ended_once(answer)
            assert answer.complete, answer.lines[-1]
            # A busy machine may read the line that says "in the middle" after the pull's end.
            was_there = codes[0] == 200
            too_late += was_there
            assert codes == [200 if was_there else 404, 200, 200]
            kept = {"other/latest"} if was_there else {"other/latest", "wide/latest"}
            assert set(rig.check_store()) == kept
            assert delete(manager.url, "wide") == (404 if was_there else 200)
    assert too_late < num_points


def recorded_pid(home: Path) -> int:
    """Of the manager that answers for this home."""
    return int(json.loads((home / "run" / "manager.json").read_text())["pid"])


def pull_twice(rig: Rig, url: str, source: str, late: float) -> None:
    """Pull, and pull again when a fraction has arrived; both end well."""
    second: list[Answer] = []
    threads: list[threading.Thread] = []

    def join(answer: Answer) -> None:
        if arrived(answer) >= late and not threads:
            threads.append(in_background(lambda: second.append(rig.pull(url, source))))

    ended_well(rig.pull(url, source, join))
    for thread in threads:
        thread.join(30)
        ended_well(second[0])


def disturbed(rig: Rig, url: str, source: str, moment: float) -> tuple[list[int], Answer]:
    """Remove and collect in the middle of a pull, while an answer is made.

    Returns the statuses of the removals and of the clean-up, and the answer.
    """
    codes: list[int] = []
    talk: list[Answer] = []

    def disturb(answer: Answer) -> None:
        if not codes and arrived(answer) >= moment:
            codes.extend([delete(url, "wide"), delete(url, "tiny"), collect(url)])

    thread = in_background(lambda: talk.append(ask(url, CHAT)))
    until(lambda: running(url))
    ended_well(rig.pull(url, source, disturb))
    thread.join(30)
    return codes, talk[0]


def running(url: str) -> bool:
    """Whether an answer is being made."""
    models = httpx.get(f"{url}/api/ps", trust_env=False).json()["models"]
    return any(item["ft"]["in_use"] for item in models)


def delete(url: str, name: str) -> int:
    """DELETE /api/delete; its status."""
    reply = httpx.request("DELETE", f"{url}/api/delete", json={"model": name}, trust_env=False)
    return reply.status_code


def collect(url: str) -> int:
    """Collect garbage through the manager; its status."""
    return httpx.post(f"{url}/api/ft/gc", json={}, trust_env=False, timeout=60).status_code


def test_gc_from_the_command_line_goes_through_the_manager(rig: Rig) -> None:
    install(Paths(rig.home, rig.home / "models"))
    before = rig.check_store()
    command = (FAKE[0], "-m", "ftman", "gc")
    with rig.manager(FAKE) as manager:
        host = manager.url.removeprefix("http://")
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(rig.home, host),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert rig.check_store() == before
        invariants.answers_when_healthy(manager.url)
