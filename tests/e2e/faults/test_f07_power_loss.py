"""F7: the power fails at any moment of pulls, copies and removals; unsynced writes are lost."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ftman import files
from ftman.catalog.catalog import Catalog
from ftman.config import Paths
from ftman.pull.source import LocalSource
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import SHORT, Rig, runs
from tests.fakes.lost_writes import Disk, read_log, recording
from tests.fakes.tiny_models import build_tiny_gguf
from tests.ftman.pull.conftest import Station, options

AGAIN_EVERY = 10


@dataclass(frozen=True)
class History:
    """What was recorded. states: the store after each piece of work; sources: name -> file."""

    steps: list[dict[str, object]]
    states: list[dict[str, str]]
    sources: dict[str, Path]

    def possible(self, marks: list[int]) -> list[dict[str, str]]:
        """States that the store may be in: the last one acknowledged, and the one begun."""
        done = len(marks) // 2  # each piece marks its begin and its end
        return self.states[done : done + 1 + len(marks) % 2]


def record(root: Path) -> History:
    """Pull two models, copy, remove and pull again, on a recorded disk."""
    home, log = root / "h", root / "steps"
    sources = {
        name: build_tiny_gguf("llama", root / f"{name}.gguf", seed=seed)
        for seed, name in enumerate(("first", "second"), 1)
    }
    command = (sys.executable, "-m", "tests.fakes.lost_writes", str(home), str(log))
    given = replace(options(), converter=(*command, "ftengine.convert"))
    home.mkdir()
    station = Station(home)
    catalog = station.catalog

    def pull(name: str) -> None:
        station.pull(name, given, local=LocalSource(sources[name]))

    works: list[Callable[[], object]] = [
        lambda: pull("first"),
        lambda: catalog.copy("first", "twin"),
        lambda: pull("second"),
        lambda: catalog.delete("first", lambda _: False),
        lambda: catalog.delete("second", lambda _: False),
        lambda: pull("second"),
    ]
    states: list[dict[str, str]] = [{}]
    with recording(home, log) as recorder:
        for number, work in enumerate(works):
            recorder.note("mark", value=number)
            work()
            recorder.note("mark", value=number)
            states.append(invariants.sound_models(home / "models"))
    return History(read_log(log), states, sources)


@runs
def test_the_store_is_whole_and_remembers_what_it_promised(rig: Rig, num_points: int) -> None:
    history = record(rig.root)
    assert len({tuple(sorted(state)) for state in history.states}) > 4, history.states
    for number in range(num_points):
        moment = rig.rng.randrange(len(history.steps) + 1)
        disk = Disk(rig.root / "h")
        for step in history.steps[:moment]:
            disk.take(step)
        home = rig.root / f"after-{number}"
        disk.left(home, rig.rng)
        left_whole(home, history.possible(disk.marks))
        if num_points > SHORT and number % AGAIN_EVERY == 0:
            pulled_again(home, history)
    rig.check_outside()


def left_whole(home: Path, possible: list[dict[str, str]]) -> None:
    """I1 to I3 of what the loss left, before and after a clean-up."""
    paths = Paths(home, home / "models")
    present = invariants.sound_models(paths.models)
    invariants.one_of(present, possible)
    catalog = Catalog(paths, lambda _: None)
    assert len(catalog.models()) == len(present)
    assert not any(model.damaged for model in catalog.models())
    catalog.sweep([], grace_s=-1e6)
    assert invariants.sound_models(paths.models) == present
    invariants.no_orphans(paths.models, partials=True)


def pulled_again(home: Path, history: History) -> None:
    """What is left of an unfinished pull misleads nobody."""
    station = Station(home)
    real = replace(options(), converter=(sys.executable, "-m", "ftengine.convert"))
    for name, source in history.sources.items():
        station.pull(name, real, local=LocalSource(source))
    present = invariants.sound_models(home / "models")
    wanted = {key: value for state in history.states for key, value in state.items()}
    assert {**present, "twin/latest": ""} == {**wanted, "twin/latest": ""}


def test_the_disk_forgets_what_was_not_synced(tmp_path: Path) -> None:
    """The model of the disk itself: a write without fsync can go, one with fsync cannot."""
    home = tmp_path / "h"
    home.mkdir()
    with recording(home, tmp_path / "steps"):
        files.write_atomic(home / "kept", b"kept")
        with files.Writer(home / "loose", truncate=True) as writer:
            writer.write_at(0, b"loose")
        files.sync_dir(home)
    steps = read_log(tmp_path / "steps")
    seen = set()
    for seed in range(20):
        disk = Disk(home)
        for step in steps:
            disk.take(step)
        left = tmp_path / f"left-{seed}"
        disk.left(left, random.Random(seed))
        assert (left / "kept").read_bytes() == b"kept"
        seen.add((left / "loose").read_bytes())
    assert seen == {b"", b"loose"}
