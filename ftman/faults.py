"""Named fault points: no-ops unless armed. Tests arm them to kill, fail or slow the process there.

A plan is text like "pull.after_range:3=kill,store.before_rename=error:ENOSPC": at the third hit of
the first point the process dies by SIGKILL, at every hit of the second an OSError is raised.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

POINTS = (
    "files.open",
    "files.write",
    "files.fsync",
    "files.rename",
    "files.unlink",
    "pull.resolved",
    "pull.after_range",
    "pull.before_verify",
    "pull.before_convert",
    "convert.after_tensor",
    "convert.before_index",
    "convert.before_rename",
    "catalog.before_commit",
    "catalog.after_commit",
    "delete.after_manifest",
)


@dataclass
class _Fault:
    action: str
    at: int
    hits: int = 0


_armed: dict[str, _Fault] = {}
_listener: Callable[[str], None] | None = None


def arm(plan: str) -> None:
    """Arm a plan; an empty plan disarms everything. Raises: ValueError on an unknown point."""
    _armed.clear()
    for item in filter(None, plan.split(",")):
        where, _, action = item.partition("=")
        point, _, count = where.partition(":")
        if point not in POINTS:
            raise ValueError(f"unknown fault point {point!r}")
        _armed[point] = _Fault(action or "kill", int(count or 0))


def listen(listener: Callable[[str], None] | None) -> None:
    """Report every hit to `listener`, so that a test can count or fail them itself."""
    global _listener
    _listener = listener


def hit(point: str) -> None:
    """Mark that execution passed `point`. Raises: OSError when armed to."""
    if _listener is not None:
        _listener(point)
    if not _armed:
        return
    fault = _armed.get(point)
    if fault is None:
        return
    fault.hits += 1
    if fault.at and fault.hits != fault.at:
        return
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    name = fault.action.partition(":")[2] or "EIO"
    number = getattr(errno, name)
    raise OSError(number, os.strerror(number), point)
