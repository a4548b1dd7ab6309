"""Reads of parked files on a thread of their own, so that running sequences go on meanwhile.

What is read, and when it is looked at, is the business of policy/parked.py and scheduler/reuse.py.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import torch

from ftengine.cache.park_files import ParkFolder


class ParkReading:
    """Rows of files, by the files' ranks. The thread begins at once and ends by itself."""

    def __init__(self, folder: ParkFolder, wanted: Mapping[int, Sequence[int]]) -> None:
        self._folder = folder
        self._wanted = wanted
        self._found: dict[int, list[torch.Tensor] | None] = {}
        self._cancelled = False
        self._thread = threading.Thread(target=self._read, name="ft-park-read", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether `rows` would not wait."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """What is not read yet is not wanted any more."""
        self._cancelled = True

    def rows(self, rank: int, numbers: Sequence[int]) -> list[torch.Tensor] | None:
        """As ParkFolder.read, and now where this was not asked for before. Waits for the thread."""
        self._thread.join()
        if rank not in self._found or not set(numbers) <= set(self._wanted[rank]):
            return self._folder.read(rank, numbers)
        rows = self._found[rank]
        if rows is None:
            return None
        by_number = dict(zip(self._wanted[rank], rows, strict=True))
        return [by_number[number] for number in numbers]

    def _read(self) -> None:
        for rank, numbers in self._wanted.items():
            if self._cancelled:
                return
            self._found[rank] = self._folder.read(rank, numbers)
