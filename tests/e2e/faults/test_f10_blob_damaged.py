"""F10: bytes of an installed model change at rest; the real engine, and the repair by a pull."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ftman.catalog.catalog import Catalog
from ftman.config import Paths
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import CHAT, Rig, ask, ended_well, runs
from tests.e2e.faults.real_models import endless_model
from tests.e2e.processes import REAL

SHORT_CHAT = CHAT | {"options": {"temperature": 0, "num_predict": 5}, "stream": False}


def flip(path: Path, rng: random.Random) -> None:
    """One bit."""
    with path.open("r+b") as file:
        at = rng.randrange(path.stat().st_size)
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << rng.randrange(8))]))


def zeros(path: Path, rng: random.Random) -> None:
    """A page of zeros over bytes that are none."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        while True:
            at = rng.randrange(max(1, size - 4096))
            file.seek(at)
            if any(file.read(4096)):
                break
        file.seek(at)
        file.write(bytes(min(4096, size - at)))


def cut(path: Path, rng: random.Random) -> None:
    """The end is missing."""
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))


def longer(path: Path, rng: random.Random) -> None:
    """Something was appended."""
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 5000)))


def removed(path: Path, rng: random.Random) -> None:
    """Not there at all."""
    path.unlink()


SIZE_CHANGES = (cut, longer, removed)


@pytest.fixture
def installed(rig: Rig) -> str:
    """A model pulled from a folder; returns what to pull to get it again."""
    source = f"file://{endless_model(rig.root)}"
    with rig.manager(REAL) as manager:
        ended_well(rig.pull(manager.url, source))
    return source


def damaged_file(rig: Rig, damage: Callable[[Path, random.Random], None], pattern: str) -> Path:
    """Damage one file of the one model."""
    (folder,) = (rig.home / "models" / "ftw").iterdir()
    path = rig.rng.choice(sorted(folder.glob(pattern)))
    damage(path, rig.rng)
    return path


@runs
def test_another_size_is_seen_at_once_and_repaired_by_a_pull(
    rig: Rig, installed: str, num_points: int
) -> None:
    with rig.manager(REAL) as manager:
        for number in range(num_points):
            damage = SIZE_CHANGES[number % len(SIZE_CHANGES)]
            path = damaged_file(rig, damage, rig.rng.choice(["*.ftw", "*.json"]))
            reply = httpx.post(f"{manager.url}/api/chat", json=SHORT_CHAT, timeout=60)
            assert reply.status_code == 500, (damage, path.name, reply.text)
            assert "damaged" in reply.json()["error"]
            assert path.name in reply.json()["error"], reply.text
            ended_well(rig.pull(manager.url, installed))
            assert set(rig.check_store()) == {"tiny/latest"}


@runs
def test_other_bytes_are_found_by_verify(rig: Rig, installed: str, num_points: int) -> None:
    del installed
    catalog = Catalog(Paths(rig.home, rig.home / "models"), lambda _: None)
    (folder,) = (rig.home / "models" / "ftw").iterdir()
    for number in range(num_points):
        path = rig.rng.choice(sorted(folder.iterdir()))
        before = path.read_bytes()
        (flip, zeros)[number % 2](path, rig.rng)
        found = catalog.verify(catalog.find("tiny"))
        assert [item.file for item in found] == [path.name], (path.name, found)
        path.write_bytes(before)
    assert catalog.verify(catalog.find("tiny")) == []


@pytest.mark.parametrize("damage", [flip, pytest.param(zeros, marks=pytest.mark.slow)])
def test_other_bytes_in_the_weights_are_refused_at_load(
    rig: Rig, installed: str, damage: Callable[[Path, random.Random], None]
) -> None:
    path = damaged_file(rig, damage, "*.ftw")
    with rig.manager(REAL) as manager:
        reply = httpx.post(f"{manager.url}/api/chat", json=SHORT_CHAT, timeout=40)
        assert reply.status_code == 500, reply.text
        assert "damaged" in reply.json()["error"]
        assert path.name in reply.json()["error"]
        ended_well(rig.pull(manager.url, installed))
        assert set(rig.check_store()) == {"tiny/latest"}
        invariants.ended_once(ask(manager.url, SHORT_CHAT | {"stream": True}))
        invariants.answers_when_healthy(manager.url)
