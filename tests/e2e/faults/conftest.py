"""A rig per test, and random points whose seed is printed: FAULT_SEED=N repeats a run."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.e2e.faults.manager_process import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    if sys.platform != "linux":
        pytest.skip("the invariants are read from /proc")
    seed = int(os.environ.get("FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"FAULT_SEED={seed}")  # noqa: T201
    return Rig(tmp_path, random.Random(seed))
