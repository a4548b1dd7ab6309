"""Which control groups of Linux this process is in, of both kinds (version 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def own_groups(controller: str, proc: Path, cgroups: Path) -> Iterator[tuple[Path, int]]:
    """Folders that may limit what `controller` counts, innermost first, each with its version.

    In a container the listed path may not exist; then the mounted root is the process's own group.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text("utf-8").splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            roots, version = [cgroups, cgroups / "unified"], 2
        elif controller in controllers.split(","):
            roots, version = [cgroups / controllers, cgroups / controller], 1
        else:
            continue
        inside = Path(path.lstrip("/"))
        for root in dict.fromkeys(roots):
            yield from ((root / part, version) for part in (inside, *inside.parents))
