"""The manager's own memory: small while idle, small again after work, and asked for beforehand."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import threading
from collections.abc import Iterator

TOP_BYTES = 1 << 20
SPARE_BYTES = 64 << 20
"""Left to everything else while a large piece of work runs: the loop, other requests, threads."""
SMALL_BYTES = 8 << 20
"""Not asked for: it finds its place in what the C library holds free, which no asking sees."""
_M_TRIM_THRESHOLD = -1


def keep_little_free() -> None:
    """Have the C library keep at most TOP_BYTES free at the end of each heap, where it can.

    Left alone, glibc raises that bound to 64 MB once a large block was freed, and `malloc_trim`
    does not look at the ends of the heaps of threads.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_TRIM_THRESHOLD, TOP_BYTES)


def settle() -> None:
    """Call once after start: what is alive now lives for ever, so the collector skips it.

    That makes full collections cheap, and they come after less garbage: their share of the old
    objects no longer counts the modules. The collector runs from here on, if it did not before.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def give_back() -> None:
    """Return what is no longer needed to the system, where it can.

    Connections and tasks hold each other in circles, with much of the C heap behind them.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Room:
    """Whether the system grants what a piece of work will need, asked before it begins.

    A library that is not Python's ends the whole process when an allocation of its fails (the
    tokenizers do), and a loop that cannot allocate ends too. Asking takes address space for a
    moment and touches none of it, so it costs microseconds and sees limits (`ulimit -v`, strict
    overcommit), not what is free.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0

    @contextlib.contextmanager
    def take(self, num_bytes: int) -> Iterator[None]:
        """Work that needs so much runs in here.   Raises: MemoryError before it begins."""
        if num_bytes < SMALL_BYTES:
            yield
            return
        with self._lock:
            # What others took they may have allocated or not: counted as if they had not.
            _ask_for(num_bytes + self._taken + SPARE_BYTES)
            self._taken += num_bytes
        try:
            yield
        finally:
            with self._lock:
                self._taken -= num_bytes


ROOM = Room()


def _ask_for(num_bytes: int) -> None:
    try:
        mmap.mmap(-1, num_bytes).close()
    except (OSError, OverflowError):
        raise MemoryError(f"the system does not grant {num_bytes >> 20} MB") from None
