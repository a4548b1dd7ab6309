"""What makes steps a little faster and would make the first one late: done after it, while idle.

Pools get huge pages, and banks that lie in the page cache are moved into own memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ftengine.device.host_memory import available_bytes
from ftengine.loader.borrowed import PART_BYTES, BorrowedBanks

_FIRST_PAUSE_S = 0.5
"""The request that an engine was started for comes at once."""
_BUSY_PAUSE_S = 1.0
"""Beside requests one part is moved in this time: they are held up by a few per cent, not long."""
_SPARE_BYTES = 256 << 20
"""Memory that is left to others."""


class Settling:
    """A thread that moves banks, a part at a time. busy: may be called from any thread.

    first: what is done before, None = nothing.
    """

    def __init__(
        self,
        banks: BorrowedBanks,
        busy: Callable[[], bool],
        first: Callable[[], None] | None = None,
    ) -> None:
        self._banks = banks
        self._first = first
        self._busy = busy
        self._hurry = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, where there is something to do."""
        if self._banks.left_bytes or self._first is not None:
            self._thread = threading.Thread(target=self._run, name="settle", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Move all of it now, as far as there is memory for it; for tests and benchmarks."""
        self._hurry.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the thread, after the part it is moving."""
        self._closed = True
        self.finish()

    def _run(self) -> None:
        self._hurry.wait(_FIRST_PAUSE_S)
        if self._first is not None and not self._closed:
            self._first()
        while not self._closed:
            if _is_short():
                if self._hurry.is_set():
                    return
                self._hurry.wait(_BUSY_PAUSE_S)
            elif not self._banks.move_part():
                return
            elif self._busy():
                self._hurry.wait(_BUSY_PAUSE_S)


def _is_short() -> bool:
    have = available_bytes()
    return have is not None and have < PART_BYTES + _SPARE_BYTES
