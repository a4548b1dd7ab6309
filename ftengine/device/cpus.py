"""How many CPUs this process may use: those it may run on, or its control groups' quota if less."""

from __future__ import annotations

import os
from pathlib import Path

from ftengine.device.control_groups import CGROUPS, PROC, own_groups


def usable_cpus(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Number of threads that can compute at once; at least 1.

    A quota of 2.5 CPUs gives 2: threads that wait for each other stand still together when the
    quota of a period is used up.
    """
    allowed = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    quota = cpu_quota(proc, cgroups)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_quota(proc: Path = PROC, cgroups: Path = CGROUPS) -> float | None:
    """The smallest quota of the groups this process is in. Units: CPUs; None: there is none."""
    found = []
    for folder, version in own_groups("cpu", proc, cgroups):
        quota = _version_2(folder) if version == 2 else _version_1(folder)
        if quota is not None:
            found.append(quota)
    return min(found) if found else None


def _version_2(folder: Path) -> float | None:
    """cpu.max holds "max 100000" or "150000 100000", microseconds in each period."""
    words = _words(folder / "cpu.max")
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _version_1(folder: Path) -> float | None:
    quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else None


def _words(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").split()
    except (OSError, ValueError):
        return []


def _ratio(quota: str, period: str) -> float | None:
    """None for "max" and for -1, which say that there is no limit."""
    try:
        used, whole = int(quota), int(period)
    except ValueError:
        return None
    return used / whole if used > 0 and whole > 0 else None
