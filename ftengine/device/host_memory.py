"""How much memory this process may still take: the machine's, or its control groups' if less.

Both kinds of control groups (version 1 and 2) are asked, from the process's own up to the root.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NO_LIMIT_BYTES = 1 << 60
"""Version 1 says "no limit" with a number near 2^63."""


@dataclass(frozen=True)
class _Names:
    """Files of one kind of control group. cache: pages given up before memory is refused."""

    limit: str
    used: str
    cache: str


_VERSION_1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Names("memory.max", "memory.current", "inactive_file")


def available_bytes(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Memory this process may still take. None where the system does not say."""
    found = [_meminfo_bytes(proc / "meminfo")]
    for folder, names in _own_groups(proc / "self" / "cgroup", cgroups):
        found.append(_group_bytes(folder, names))
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


def _own_groups(listing: Path, cgroups: Path) -> Iterator[tuple[Path, _Names]]:
    """The memory groups this process is in, innermost first.

    In a container the listed path may not exist; then the mounted root is the process's own group.
    """
    try:
        lines = listing.read_text("utf-8").splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots, names = [cgroups, cgroups / "unified"], _VERSION_2
        elif "memory" in controllers.split(","):
            roots, names = [cgroups / "memory"], _VERSION_1
        else:
            continue
        inside = Path(path.lstrip("/"))
        for root in roots:
            yield from ((root / part, names) for part in (inside, *inside.parents))


def _group_bytes(folder: Path, names: _Names) -> int | None:
    try:
        limit = (folder / names.limit).read_text("ascii").strip()
        if limit == "max" or int(limit) >= _NO_LIMIT_BYTES:
            return None
        used = int((folder / names.used).read_text("ascii"))
        stat = (folder / "memory.stat").read_text("ascii")
    except (OSError, ValueError):
        return None
    cache = 0
    for line in stat.splitlines():
        key, _, value = line.partition(" ")
        if key == names.cache:
            cache = int(value)
    return max(int(limit) - used + cache, 0)
