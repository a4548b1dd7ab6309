"""F16: locks left behind, pids given away again, lock files deleted, file systems that lie."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftman.catalog.lock import LOCK_NAME, OWNER_NAME, STORE_LOCK_NAME
from ftman.config import Paths
from tests.e2e.faults.manager_process import Rig, runs
from tests.e2e.processes import ROOT

RACERS = 3
RACES = 5
PROGRAM = """
import fcntl, sys
from pathlib import Path
from ftman.catalog.lock import acquire_manager_lock
from ftman.config import Paths
from ftman.errors import ConflictError
honest, held = fcntl.flock, None
for line in sys.stdin:
    verb, home = line.rstrip("\\n").split(" ", 1)
    fcntl.flock = (lambda *_: None) if verb == "take-lying" else honest
    if verb == "drop":
        held.release()
        answer, held = "dropped", None
    else:
        try:
            held = acquire_manager_lock(Paths(Path(home), Path(home) / "models"))
            answer = "took"
        except ConflictError as error:
            answer = "refused " + error.message
    print(answer, flush=True)
"""


class Contender:
    """A process that takes and drops the lock of a store when told to."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, verb: str, home: Path) -> None:
        """Give an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{verb} {home}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """Its answer."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def do(self, verb: str, home: Path) -> str:
        """Both."""
        self.say(verb, home)
        return self.hear()


@pytest.fixture
def contenders() -> Iterator[list[Contender]]:
    started = [Contender() for _ in range(RACERS)]
    yield started
    for one in started:
        one.process.communicate(timeout=60)


def leave_behind(paths: Paths, pid: int, rng: random.Random) -> None:
    """What a dead manager leaves: lock files, and perhaps a record, whole or torn."""
    paths.run.mkdir(parents=True)
    paths.models.mkdir()
    (paths.run / LOCK_NAME).write_text(f"{pid}\n")
    (paths.models / STORE_LOCK_NAME).write_text(f"{pid}\n")
    record = json.dumps({"pid": pid, "start": "12345"})
    torn = record[: rng.randrange(len(record))]
    kept = rng.choice([record, torn, "", None])
    if kept is not None:
        (paths.run / OWNER_NAME).write_text(kept)


@runs
def test_a_store_has_one_owner_whatever_was_left_and_whatever_locks_say(
    rig: Rig, contenders: list[Contender], num_points: int
) -> None:
    for number in range(num_points):
        home = rig.root / f"h{number}"
        paths = Paths(home, home / "models")
        # A pid that lives, but is another process: that of a contender, or of init.
        leave_behind(paths, rig.rng.choice([contenders[-1].process.pid, 1, 999_999]), rig.rng)
        verb = rig.rng.choice(["take", "take-lying"])
        first, second = rig.rng.sample(contenders, 2)
        assert first.do(verb, home) == "took"
        if rig.rng.random() < 0.5:
            (paths.run / LOCK_NAME).unlink()
            (paths.models / STORE_LOCK_NAME).unlink()
        told = second.do(verb, home)
        assert f"(pid {first.process.pid})" in told, (verb, told)
        assert first.do("drop", home) == "dropped"
        assert second.do(verb, home) == "took"
        assert second.do("drop", home) == "dropped"
        assert not (paths.run / OWNER_NAME).exists()
        assert not [path for path in paths.run.iterdir() if path.name != LOCK_NAME]
    rig.check_outside()


@runs
def test_of_several_at_once_one_wins_even_where_every_lock_succeeds(
    rig: Rig, contenders: list[Contender], num_points: int
) -> None:
    for number in range(RACES * num_points):
        home = rig.root / f"h{number}"
        if number % 2:
            leave_behind(Paths(home, home / "models"), 999_999, rig.rng)
        for racer in contenders:
            racer.say("take-lying", home)
        answers = [racer.hear() for racer in contenders]
        winners = [
            racer for racer, answer in zip(contenders, answers, strict=True) if answer == "took"
        ]
        assert len(winners) == 1, answers
        assert winners[0].do("drop", home) == "dropped"
