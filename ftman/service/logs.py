"""The log folder: which logs there are, and one of them read line by line as it grows.

What is written to them, and when they are rotated, is the business of those who write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ftman import files
from ftman.errors import NotFoundError
from ftman.names import printable

TAIL_BYTES = 1 << 20
PIECE_BYTES = 1 << 18


@dataclass(frozen=True)
class LogFile:
    """One log. Units: bytes; wall seconds of the last line."""

    name: str
    size_bytes: int
    modified_wall_s: float


def list_logs(folder: Path) -> list[LogFile]:
    """The logs of a folder, the manager's first, then those written last."""
    found = list(_entries(folder))
    return sorted(found, key=lambda log: (log.name.startswith("engine-"), -log.modified_wall_s))


class LogTail:
    """The end of one log and what is added to it."""

    def __init__(self, folder: Path, name: str, num_lines: int):
        """Raises: NotFoundError naming what there is."""
        names = [log.name for log in _entries(folder)]
        if name not in names:
            there = f"There are: {', '.join(sorted(names))}" if names else "There is none yet."
            raise NotFoundError(f"no log named {printable(name)!r}", hint=there)
        self._path = folder / f"{name}.log"
        self._num_lines = num_lines
        self._inode = 0
        self._position = -1

    def read(self) -> bytes:
        """What is new: whole lines at first, then bytes as they come; b"" when there is nothing.

        A log that was cut or replaced is read from its start. For a thread.
        """
        try:
            with files.open_read(self._path) as log:
                stat = os.fstat(log.fileno())
                if self._position < 0:
                    log.seek(max(0, stat.st_size - TAIL_BYTES))
                    data = _last_lines(log.read(TAIL_BYTES), self._num_lines)
                else:
                    same = stat.st_ino == self._inode and stat.st_size >= self._position
                    log.seek(self._position if same else 0)
                    data = log.read(PIECE_BYTES)
                self._position, self._inode = log.tell(), stat.st_ino
                return data
        except FileNotFoundError:
            return b""


def _last_lines(data: bytes, count: int) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[-count:]) if count > 0 else b""


def _entries(folder: Path) -> Iterator[LogFile]:
    for path in folder.glob("*.log") if folder.is_dir() else ():
        try:
            stat = path.stat()
        except OSError:  # removed meanwhile
            continue
        yield LogFile(path.stem, stat.st_size, stat.st_mtime)
