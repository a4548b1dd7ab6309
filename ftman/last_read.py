"""Small files of the store as they were read last: a loaded model goes on without its disk."""

from __future__ import annotations

from pathlib import Path

from ftman import files

KEPT = 16


class LastRead:
    """Reads files, and remembers the latest of them."""

    def __init__(self) -> None:
        self._kept: dict[Path, bytes] = {}  # the latest at the end

    def read_bytes(self, path: Path) -> bytes:
        """The file, or where it cannot be read what was read last.   Raises: OSError."""
        try:
            data = files.read_bytes(path)
        except OSError:
            if path not in self._kept:
                raise
            return self._kept[path]
        self._kept.pop(path, None)
        self._kept[path] = data
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return data
