"""The manager's own memory: small while idle, and small again after work."""

from __future__ import annotations

import contextlib
import ctypes
import gc

TOP_BYTES = 1 << 20
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
