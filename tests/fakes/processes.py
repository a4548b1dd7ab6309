"""Which child processes this test process has; for tests that must leave none behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def children() -> frozenset[str]:
    """Pids of all children. Compare before and after: other tests' fixtures may hold some."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    if not tasks.is_dir():
        pytest.skip("no /proc here")
    found = [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
    return frozenset(found)
