"""Real memory control groups for tests, of both versions, and what a process finds in its own.

A group is made below the one the tests run in (or beside it, where version 2 wants that), so that
whatever limits the tests limits it too, and is removed afterwards.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_REMOVE_S = 5.0


@dataclass(frozen=True)
class MemoryGroup:
    """How to get a command into the group: its prefix, or the file its pid is written to."""

    prefix: tuple[str, ...] = ()
    procs: str = ""


@dataclass(frozen=True)
class Usage:
    """What a group says of itself.

    refaults: file pages read again because they had to go before; kills: for want of memory.
    """

    limit_bytes: int
    peak_bytes: int
    refaults: int
    kills: int


class NoGroupError(Exception):
    """No memory group can be made here; the text says why."""


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[MemoryGroup]:
    """A new group without swap. Raises: NoGroupError."""
    own = own_group()
    if own is None:
        raise NoGroupError("this machine has no memory control groups")
    version, folder = own
    for parent in (folder, folder.parent) if version == 2 else (folder,):
        path = parent / f"ft-test-{os.getpid()}"
        try:
            _check_delegated(version, parent)
            path.mkdir()
        except (OSError, NoGroupError) as error:
            reason = str(error)
            continue
        try:
            _limit(version, path, limit_bytes)
            yield MemoryGroup(procs=str(path / "cgroup.procs"))
        finally:
            _remove(path)
        return
    prefix = ("systemd-run", "--quiet", "--scope", "-p", f"MemoryMax={limit_bytes}")
    prefix += ("-p", "MemorySwapMax=0")
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoGroupError(f"no memory group can be made here: {reason}; {error}") from None
    yield MemoryGroup(prefix=prefix)


def own_group() -> tuple[int, Path] | None:
    """(version, folder) of the memory group this process is in."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in sorted(lines, key=lambda text: text.startswith("0:")):
        _, controllers, inside = line.split(":", 2)
        root = CGROUPS / "memory" if controllers else CGROUPS
        if controllers and "memory" not in controllers.split(","):
            continue
        here = root / inside.lstrip("/")
        for folder in (here, root):  # a container may see its own group as the root
            if (folder / "cgroup.procs").exists():
                return (1 if controllers else 2), folder
    return None


def own_usage() -> Usage:
    """Of the group this process is in."""
    found = own_group()
    assert found is not None
    version, folder = found
    refaults = _numbers(folder / "memory.stat").get("workingset_refault_file", 0)
    if version == 1:
        control = _numbers(folder / "memory.oom_control")
        return Usage(
            _number(folder / "memory.limit_in_bytes"),
            _number(folder / "memory.max_usage_in_bytes"),
            refaults,
            control.get("oom_kill", 0),
        )
    events = _numbers(folder / "memory.events")
    peak = folder / "memory.peak"
    return Usage(
        _number(folder / "memory.max"),
        _number(peak) if peak.exists() else _number(folder / "memory.current"),
        refaults,
        events["oom_kill"],
    )


def _check_delegated(version: int, parent: Path) -> None:
    if version == 2 and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
        raise NoGroupError(f"{parent} hands the memory controller to no group below it")


def _limit(version: int, path: Path, limit_bytes: int) -> None:
    names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    values = (limit_bytes, limit_bytes)
    if version == 2:
        names, values = ("memory.max", "memory.swap.max"), (limit_bytes, 0)
    (path / names[0]).write_text(str(values[0]))
    if (path / names[1]).exists():
        (path / names[1]).write_text(str(values[1]))


def _remove(path: Path) -> None:
    """The last process may need a moment to be gone."""
    until = time.monotonic() + _REMOVE_S
    while True:
        try:
            path.rmdir()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _number(path: Path) -> int:
    return int(path.read_text("ascii"))


def _numbers(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in path.read_text("ascii").splitlines())
    return {name: int(value) for name, value in pairs}
