"""F28: files of an older, a newer, or a broken version of ours in the store.

There has been one schema so far, so there is no migration that could be interrupted: what is tried
instead is every way in which the files of version 1 can be incomplete, and files of a version 2.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ftman.calibration import Calibration
from ftman.config import Config, EngineSettings, Paths
from ftman.errors import ConflictError, FtmanError
from ftman.gateway.app import serve
from ftman.keys import USE, create_key, keys_path, read_keys
from ftman.pull.job_store import SCHEMA_VERSION, JobStore, JobView
from ftman.pull.journal import Journal
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import Rig, runs
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.ftman.gateway.serving import Tiny, ids_of, install

GOOD = FakeScript(tokens=ids_of("ok"))
JOB = JobView("j1", "m", "paused", "download", 5, 9, "", 1.0, 2.0)


def version_of(path: Path) -> int:
    """What the database says of itself."""
    with closing(sqlite3.connect(path)) as database:
        row = database.execute("SELECT version FROM parts WHERE part = 'jobs'").fetchone()
    return int(row[0])


def saved(folder: Path) -> Path:
    """A state database with one job in it."""
    store = JobStore(folder)
    store.save(JOB)
    store.close()
    return folder / "state.db"


def newer(path: Path, rng: random.Random) -> None:
    """Written by a version that does not exist yet."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE parts SET version = ?", (SCHEMA_VERSION + rng.randrange(1, 9),))


def cut(path: Path, rng: random.Random) -> None:
    """The end is missing: a copy that was interrupted."""
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))


def garbage(path: Path, rng: random.Random) -> None:
    """Other bytes from some place on."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(rng.randrange(64))
        file.write(rng.randbytes(size))


def half_made(path: Path, rng: random.Random) -> None:
    """Killed while the tables were made."""
    with closing(sqlite3.connect(path)) as database, database:
        for table in rng.sample(("parts", "wishes", "jobs"), rng.randrange(1, 4)):
            database.execute(f"DROP TABLE {table}")


def test_a_newer_state_is_refused_by_name_and_left_alone(
    tmp_path: Path, rng: random.Random
) -> None:
    path = saved(tmp_path)
    newer(path, rng)
    before, version = path.read_bytes(), version_of(path)
    with pytest.raises(ConflictError, match="written by a newer ft") as caught:
        JobStore(tmp_path)
    assert "Use the newer ft" in caught.value.hint
    assert version_of(path) == version
    assert len(path.read_bytes()) == len(before)


@runs
def test_a_broken_state_is_put_aside_or_mended_and_no_model_is_lost(
    rig: Rig, num_points: int
) -> None:
    kinds: tuple[Callable[[Path, random.Random], None], ...] = (cut, garbage, half_made)
    state = rig.home / "state"
    with rig.inside(GOOD) as manager:
        invariants.answers_when_healthy(manager.url)
        before = rig.check_store()
    for _ in range(num_points):
        for path in state.glob("state.db*"):
            path.unlink()
        kind = rig.rng.choice(kinds)
        kind(saved(state), rig.rng)
        store = JobStore(state)
        assert store.rows() in ([JOB], []), kind
        store.save(JOB)
        assert JOB in store.rows(), kind
        store.close()
        assert version_of(state / "state.db") == SCHEMA_VERSION
    assert rig.check_store() == before


def test_a_manager_says_that_the_state_is_newer_and_does_not_start(rig: Rig) -> None:
    newer(saved(rig.home / "state"), rig.rng)
    config = Config(Paths(rig.home, rig.home / "models"), port=0)
    with pytest.raises(ConflictError, match="newer ft"):
        serve(config, launcher=FakeLauncher(GOOD))


def replaced(path: Path, **changes: object) -> None:
    """A JSON file with other values."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@runs
def test_manifests_of_another_time_spoil_only_their_own_model(rig: Rig, num_points: int) -> None:
    models = rig.home / "models"
    other = models / "manifests" / "registry.ollama.ai" / "library" / "other" / "latest"
    install(Paths(rig.home, models))
    install(Paths(rig.home, models), Tiny("other:latest", seed=1))
    good = other.read_bytes()
    damages: tuple[Callable[[], object], ...] = (
        lambda: replaced(other, layers="none"),
        lambda: replaced(other, config={"digest": "sha512:00"}),
        lambda: replaced(other, layers=[{"mediaType": "x", "digest": "sha256:" + "0" * 64}]),
        lambda: other.write_bytes(good[: rig.rng.randrange(len(good) - 1)]),
        lambda: other.write_bytes(b""),
        lambda: other.write_bytes(rig.rng.randbytes(300)),
    )
    with rig.inside(GOOD, (Tiny(),)) as manager:
        for number in range(num_points):
            damages[number % len(damages)]()
            invariants.answers_when_healthy(manager.url)
            body = {"model": "other", "prompt": "x", "stream": False}
            reply = manager.http.post("/api/generate", json=body)
            assert reply.status_code in (404, 500, 502), reply.text
            invariants.told_why(reply)
            listed = manager.http.get("/api/tags")
            assert listed.status_code == 200
            freed = manager.http.post("/api/ft/gc", json={})
            assert freed.json() == {"freed": 0}, "what an unreadable manifest needs is not known"
            other.write_bytes(good)
        assert manager.http.post("/api/generate", json=body).is_success


@runs
def test_small_files_of_another_version_are_refused_or_made_anew(
    tmp_path: Path, rng: random.Random, num_points: int
) -> None:
    paths = Paths(tmp_path, tmp_path / "models")
    calibration = Calibration(paths, EngineSettings(threads=1))
    rates, keys = tmp_path / "state" / "calibration.json", keys_path(paths)
    rates.parent.mkdir(parents=True)
    create_key(keys, "a", USE)
    known = keys.read_bytes()
    data, journal = tmp_path / "data", tmp_path / "journal"
    data.write_bytes(b"x" * 100)
    for _ in range(num_points):
        other = json.dumps({calibration.key(): 7})
        rates.write_text(rng.choice(('{"version": 2}', "[]", "{", other)))
        assert calibration.cached() is None
        keys.write_bytes(rng.choice((b"[1]", b"{", known[: rng.randrange(1, len(known) - 2)])))
        with pytest.raises(FtmanError, match="keys"):
            read_keys(keys)
        keys.write_bytes(known)
        assert len(read_keys(keys)) == 1
        head = {"version": rng.choice((0, 2, "1")), "identity": "i", "segments": [[0, 100]]}
        journal.write_text(json.dumps(head) + '\n{"pos": {"0": 100}}\n')
        opened = Journal.open(journal, data, "i", [(0, 100)])
        assert opened.fresh, "nothing is believed of a journal of another version"
        opened.close()
