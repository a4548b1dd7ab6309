"""A rig per test, and random points whose seed is printed: FAULT_SEED=N repeats a run."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.faults import ledger
from tests.e2e.faults.manager_process import Rig
from tests.fakes.hub import BadHub

_FAILED = pytest.StashKey[bool]()


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"FAULT_SEED={seed}")  # noqa: T201
    return random.Random(seed)


@pytest.fixture
def rig(tmp_path: Path, rng: random.Random) -> Rig:
    if sys.platform != "linux":
        pytest.skip("the invariants are read from /proc")
    return Rig(tmp_path, rng)


@pytest.fixture
def hub() -> Iterator[BadHub]:
    with BadHub() as served:
        yield served


@pytest.fixture(autouse=True)
def _ledger(request: pytest.FixtureRequest) -> Iterator[None]:
    """What this test checks and measures is kept for the table."""
    given = getattr(request.node, "callspec", None)
    points = given.params.get("num_points", 1) if given is not None else 1
    with ledger.recording(request.node.nodeid, points) as record:
        yield
        record.passed = not request.node.stash.get(_FAILED, False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report
