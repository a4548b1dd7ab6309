"""Expert banks and the embedding, used where the page cache has them until they are moved.

So an engine is ready as soon as its weights were checked. Own memory lies in huge pages, which are
read a few per cent faster, and the system does not take it back. When to move: runtime/settle.py.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from ftengine.loader.cached_file import CachedFile

log = logging.getLogger(__name__)

PART_BYTES = 32 << 20
"""Moved at once: some hundredths of a second, and this much memory twice."""


@dataclass(frozen=True)
class _Span:
    """Whole pages of a file that are used there. Units: bytes."""

    file: CachedFile
    start: int
    end: int


class BorrowedBanks:
    """What lies in mapped files and is to be moved. One thread moves."""

    def __init__(self) -> None:
        self._left: deque[_Span] = deque()
        self._used: dict[CachedFile, list[_Span]] = {}
        self.total_bytes = 0

    @property
    def left_bytes(self) -> int:
        """Bytes that are not moved yet."""
        return sum(span.end - span.start for span in tuple(self._left))

    def add(self, file: CachedFile, start: int, num_bytes: int) -> None:
        """Take a bank, or other whole pages."""
        span = _Span(file, start, start + num_bytes)
        self._left.append(span)
        self._used.setdefault(file, []).append(span)
        self.total_bytes += num_bytes

    def forget_rest(self) -> None:
        """Once all is loaded: keep nothing of these files in memory but what was taken."""
        for file, spans in self._used.items():
            at = 0
            for span in sorted(spans, key=lambda item: item.start):
                file.forget(at, span.start)
                at = span.end
            file.forget(at, len(file.view))
        self._used.clear()

    def move_part(self) -> bool:
        """Move the next PART_BYTES. False where nothing is left; then the files are let go."""
        if not self._left:
            return False
        span = self._left[0]
        end = span.file.cut(span.start, span.end, PART_BYTES)
        try:
            span.file.move(span.start, end)
        except OSError as error:
            log.warning("experts stay where the page cache has them: %s", error)
            self._left.clear()
            return False
        if end < span.end:
            self._left[0] = _Span(span.file, end, span.end)
        else:
            self._left.popleft()
        return True
