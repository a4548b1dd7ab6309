"""Pages that the system must not drop: mlock, and how much of it this process may have."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

if sys.platform != "win32":
    import resource

_ON_FAULT = 1
"""MLOCK_ONFAULT: what is not in memory is locked when it is next read, and not read for this."""


def lockable_bytes() -> int | None:
    """The process's limit on locked memory (RLIMIT_MEMLOCK); None = no limit.

    A privileged process may exceed it; ft does not, it is what somebody set.
    """
    if sys.platform == "win32":
        return 0
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def lock(address: int, num_bytes: int) -> None:
    """Keep these pages once they are in memory. Raises: OSError when the system refuses."""
    libc = _libc()
    try:
        _call(lambda: libc.mlock2(*_range(address, num_bytes), ctypes.c_int(_ON_FAULT)))
    except AttributeError:  # not on this system: lock and read at once
        _call(lambda: libc.mlock(*_range(address, num_bytes)))


def unlock(address: int, num_bytes: int) -> None:
    """Let these pages go again. Raises: OSError."""
    libc = _libc()
    _call(lambda: libc.munlock(*_range(address, num_bytes)))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _range(address: int, num_bytes: int) -> tuple[ctypes.c_void_p, ctypes.c_size_t]:
    return ctypes.c_void_p(address), ctypes.c_size_t(num_bytes)


def _call(function: Callable[[], int]) -> None:
    if function() != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
