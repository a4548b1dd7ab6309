"""Where a request body is collected: pages of its own, which go back to the system at its end.

A body kept as a list of parts comes from the C heap and lies there between what lives longer, so
the process stays large after a single big request.
"""

from __future__ import annotations

import mmap

SMALL_BYTES = 256 << 10


class Spool:
    """Collects up to `limit` bytes.   Units: bytes."""

    def __init__(self, limit: int):
        self._limit = limit
        self._small = bytearray()
        self._pages: mmap.mmap | None = None
        self.size = 0

    def write(self, data: bytes) -> bool:
        """Append; False, and nothing is kept any more, when that is above the limit."""
        self.size += len(data)
        if self.size > self._limit:
            self.close()
            return False
        if self._pages is None and self.size <= SMALL_BYTES:
            self._small += data
            return True
        if self._pages is None:
            # Only what is written takes memory: an untouched page costs nothing.
            self._pages = mmap.mmap(-1, self._limit)
            self._pages.write(self._small)
            self._small = bytearray()
        self._pages.write(data)
        return True

    def take(self) -> bytes:
        """What was written, once; the pages are gone afterwards."""
        data = bytes(self._small) if self._pages is None else self._pages[: self.size]
        self.close()
        return data

    def close(self) -> None:
        """Give everything back; twice is fine."""
        self._small = bytearray()
        if self._pages is not None:
            self._pages.close()
            self._pages = None
