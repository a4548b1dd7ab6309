"""One manager per store: the lock that `ft serve` holds while it runs.

An advisory lock alone is not enough: on some network file systems it always succeeds, and a lock
file deleted by hand can be locked twice. Therefore the owner's pid and start time are recorded too,
in a file that only one can create, and an owner that is still alive is believed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
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
_TRIES = 10
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
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
    mine = {"pid": os.getpid(), "start": process_start(os.getpid())}
    try:
        _claim(owner_path, mine)
        _sweep_temporaries(paths)
    except _OwnedError as error:
        lock.release()
        raise _conflict(paths, str(error)) from None
    except OSError:
        lock.release()
        raise
    return lock


def _sweep_temporaries(paths: Paths) -> None:
    """Remove what a killed manager was about to put in place of a file of its own."""
    for folder in (paths.home, paths.run, paths.run / "engines", paths.state):
        for path in folder.glob(".*.tmp"):
            words = path.name.split(".")
            if len(words) > 3 and words[-2].isdigit() and _is_gone(int(words[-2])):
                files.unlink(path)


def _is_gone(pid: int) -> bool:
    """Whether no process has this pid; False where that cannot be told."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


class _OwnedError(Exception):
    """A living process has claimed it; the text is its pid."""


def _claim(path: Path, mine: dict[str, Any]) -> None:
    """Put our record there, in place of a dead owner's.   Raises: _OwnedError, OSError."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            _create(path, json.dumps(mine).encode())
            break
        stale = _bytes_of(path)
        if stale is not None and _succeed(path, stale, mine):
            break
    else:
        raise _OwnedError(str(_read_owner(path).get("pid", "unknown")))
    for heir in path.parent.glob(f"{path.name}.*"):
        files.unlink(heir)


def _succeed(path: Path, stale: bytes, mine: dict[str, Any]) -> bool:
    """Take a dead owner's place; False: somebody was faster.

    Only who has created the file of its heir may replace its record, so that nobody finds the place
    empty and no new owner's record is taken for the dead one's. An heir that died is a dead owner.
    Raises: _OwnedError where the owner or an heir lives.
    """
    seen = stale
    _require_dead(stale, mine)
    while True:
        heir = path.with_name(f"{path.name}.{hashlib.sha256(seen).hexdigest()[:16]}")
        try:
            _create(heir, json.dumps(mine).encode())
            break
        except FileExistsError:
            dead = _bytes_of(heir)
        if dead is None:
            return False
        _require_dead(dead, mine)
        seen += dead
    if _bytes_of(path) != stale:
        files.unlink(heir)
        return False
    files.rename(heir, path)
    return True


def _require_dead(record: bytes, mine: dict[str, Any]) -> None:
    owner = _owner_of(record)
    if owner != mine and _is_alive(owner):
        raise _OwnedError(str(owner["pid"]))


def _create(path: Path, data: bytes) -> None:
    try:
        files.create_new(path, data)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        files.write_atomic(path, data)


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
    return _owner_of(_bytes_of(path) or b"")


def _bytes_of(path: Path) -> bytes | None:
    """What a record holds, nothing where it cannot be read; None: there is none."""
    try:
        return files.read_bytes(path, limit=4096)
    except FileNotFoundError:
        return None
    except OSError:
        return b""


def _owner_of(record: bytes) -> dict[str, Any]:
    try:
        value = json.loads(record)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _conflict(paths: Paths, pid: str) -> ConflictError:
    return ConflictError(
        f"the model store {paths.models} is in use by another ft manager (pid {pid})",
        hint=f"Use that one, or end it first: kill {pid}",
        code="store_in_use",
    )
