"""What makes steps a little faster and would make the first one late: done after it, while idle.

Pools get huge pages, and banks that lie in the page cache are moved into own memory.
"""

from __future__ import annotations

import threading
import weakref
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
            arguments = (weakref.ref(self), self._hurry)
            self._thread = threading.Thread(target=_run, args=arguments, name="settle", daemon=True)
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

    def step(self, is_first: bool) -> float | None:
        """Do one thing. Returns how long to wait before the next, None after the last."""
        if self._closed:
            return None
        if is_first and self._first is not None:
            self._first()
        if _is_short():
            return None if self._hurry.is_set() else _BUSY_PAUSE_S
        if not self._banks.move_part():
            return None
        return _BUSY_PAUSE_S if self._busy() else 0.0


def _run(settling: weakref.ref[Settling], hurry: threading.Event) -> None:
    """The thread; while it waits it keeps nothing alive that nobody else uses."""
    hurry.wait(_FIRST_PAUSE_S)
    is_first = True
    while (found := settling()) is not None:
        pause_s, is_first = found.step(is_first), False
        del found
        if pause_s is None:
            return
        if pause_s:
            hurry.wait(pause_s)


def _is_short() -> bool:
    have = available_bytes()
    return have is not None and have < PART_BYTES + _SPARE_BYTES
