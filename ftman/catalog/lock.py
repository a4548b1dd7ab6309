"""One manager per store: the lock that `ft serve` holds while it runs.

An advisory lock alone is not enough: on some network file systems it always succeeds, and a lock
file deleted by hand can be locked twice. A second check therefore records the owner's pid and
start time by rename, and an owner that is still alive is believed.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

from ftman import files
from ftman.config import Paths
from ftman.errors import ConflictError

log = logging.getLogger(__name__)

LOCK_NAME = "manager.lock"
OWNER_NAME = "manager.owner"
STORE_LOCK_NAME = ".manager.lock"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


class ManagerLock(files.Lock):
    """Held locks on the run folder and, apart from it, on the models folder."""

    def __init__(self, paths: Paths):
        super().__init__(paths.run / LOCK_NAME)
        self._store: files.Lock | None = None
        try:
            self._store = files.Lock(paths.models / STORE_LOCK_NAME)
        except OSError as error:
            if isinstance(error, files.LockedError) or error.errno not in _READ_ONLY:
                super().release()
                raise
            log.warning("the store %s cannot be locked: %s", paths.models, error.strerror)

    def release(self) -> None:
        """Give both locks up and forget the owner record."""
        owner = self.path.with_name(OWNER_NAME)
        if _read_owner(owner).get("pid") == os.getpid():
            files.unlink(owner)
        if self._store is not None:
            self._store.release()
        super().release()


def acquire_manager_lock(paths: Paths) -> files.Lock:
    """Become the one manager of this store.   Raises: ConflictError with the owner's pid."""
    owner_path = paths.run / OWNER_NAME
    try:
        lock = ManagerLock(paths)
    except files.LockedError as error:
        raise _conflict(paths, str(error.strerror).removeprefix("held by process ")) from None
    other = _read_owner(owner_path)
    if other and other.get("pid") != os.getpid() and _is_alive(other):
        lock.release()
        raise _conflict(paths, str(other["pid"]))
    mine = {"pid": os.getpid(), "start": process_start(os.getpid())}
    files.write_atomic(owner_path, json.dumps(mine).encode())
    now = _read_owner(owner_path)
    if now != mine:
        lock.release()
        raise _conflict(paths, str(now.get("pid", "unknown")))
    return lock


def process_start(pid: int) -> str:
    """A text that differs between processes that had the same pid; "" where it is not known."""
    try:
        stat = files.read_bytes(Path(f"/proc/{pid}/stat"), limit=4096)
    except OSError:
        return ""
    return stat.rpartition(b")")[2].split()[19].decode()


def _is_alive(owner: dict[str, Any]) -> bool:
    pid, start = owner.get("pid"), owner.get("start")
    return isinstance(pid, int) and bool(start) and process_start(pid) == start


def _read_owner(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(files.read_bytes(path, limit=4096))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _conflict(paths: Paths, pid: str) -> ConflictError:
    return ConflictError(
        f"the model store {paths.models} is in use by another ft manager (pid {pid})",
        hint=f"Use that one, or end it first: kill {pid}",
        code="store_in_use",
    )
