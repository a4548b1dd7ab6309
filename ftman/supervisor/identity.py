"""Which process is this? Start time and argv of a pid, so that a reused pid deceives nobody.

Reads /proc on Linux and asks ps on other Unix systems; elsewhere nothing can be proved.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_START_TIME_FIELD = 19  # of /proc/<pid>/stat, counted behind the command name


@dataclass(frozen=True)
class Identity:
    """What tells one process from all others, ever: start is boot and start time in one text."""

    pid: int
    start: str
    argv: tuple[str, ...]


def identity_of(pid: int) -> Identity | None:
    """The identity of a live process; None when it is gone, a zombie, or cannot be known."""
    if sys.platform == "linux":
        return _from_proc(pid)
    if os.name == "posix":
        return _from_ps(pid)
    return None


def find_by_argv(argv: tuple[str, ...]) -> Identity | None:
    """The process with exactly this argv, for a start whose pid was never written down."""
    if sys.platform != "linux":
        return None
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            found = _from_proc(int(folder.name))
            if found is not None and found.argv == argv:
                return found
    return None


def _from_proc(pid: int) -> Identity | None:
    folder = Path(f"/proc/{pid}")
    try:
        stat = (folder / "stat").read_text("utf-8", "replace")
        command = (folder / "cmdline").read_bytes()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    argv = tuple(os.fsdecode(item) for item in command.split(b"\0")[:-1])
    return Identity(pid, f"{boot}:{fields[_START_TIME_FIELD]}", argv)


def _from_ps(pid: int) -> Identity | None:
    try:
        answer = subprocess.run(
            ["ps", "-ww", "-o", "lstart=,command=", "-p", str(pid)],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = answer.stdout.split()
    if len(words) < 6:
        return None
    # ps shows words, not arguments: good enough, because the token file's path is among them.
    return Identity(pid, " ".join(words[:5]), tuple(words[5:]))
