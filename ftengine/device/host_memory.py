"""How much memory this process may still take: the machine's, or its control groups' if less.

Both kinds of control groups (version 1 and 2) are asked, from the process's own up to the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ftengine.device.control_groups import CGROUPS, PROC, own_groups

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says "no limit" with a number near 2^63."""


@dataclass(frozen=True)
class _Names:
    """Files of one kind of control group.

    limits: the smallest counts; above memory.high a process is slowed down until it stands still.
    cache: file pages, all of which are given up before memory is refused, as in MemAvailable.
    """

    limits: tuple[str, ...]
    used: str
    cache: tuple[str, ...]


_VERSION_1 = _Names(
    ("memory.limit_in_bytes",),
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_VERSION_2 = _Names(
    ("memory.max", "memory.high"), "memory.current", ("inactive_file", "active_file")
)


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int | None:
    """Memory this process may still take. None where the system does not say."""
    found = [_meminfo_bytes(proc / "meminfo")]
    for folder, version in own_groups("memory", proc, cgroups):
        found.append(_group_bytes(folder, _VERSION_2 if version == 2 else _VERSION_1))
    known = [value for value in found if value is not None]
    return min(known) if known else None


def _meminfo_bytes(path: Path) -> int | None:
    try:
        lines = path.read_text("ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_bytes(folder: Path, names: _Names) -> int | None:
    limits = [_limit_bytes(folder / name) for name in names.limits]
    known = [limit for limit in limits if limit is not None]
    if not known:
        return None
    try:
        used = int((folder / names.used).read_text("ascii"))
        stat = (folder / "memory.stat").read_text("ascii")
    except (OSError, ValueError):
        return None
    cache = 0
    for line in stat.splitlines():
        key, _, value = line.partition(" ")
        if key in names.cache:
            cache += int(value)
    return max(min(known) - used + cache, 0)


def _limit_bytes(path: Path) -> int | None:
    try:
        limit = path.read_text("ascii").strip()
        return None if limit == "max" or int(limit) >= _NO_LIMIT_BYTES else int(limit)
    except (OSError, ValueError):
        return None
