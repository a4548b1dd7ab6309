"""A weight file that the page cache holds: used where it lies, moved into own memory later.

What is read through a mapping cannot fail politely, a file cut short ends the process; so pages are
asked for first, which can. Linux only: elsewhere files are read as ftw.py does.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from pathlib import Path
from typing import IO

from ftengine.errors import FormatError

_CACHED_ONLY: int = getattr(os, "RWF_NOWAIT", 0)
_SAMPLE_BYTES = 1 << 20
_MOST = 2
"""One part of so many may be missing: systems that take memory back early leave holes."""
_HUGE_PAGE_BYTES = 2 << 20
_POPULATE_READ = 22
"""MADV_POPULATE_READ, which Python does not name; Linux 5.14 knows it."""
_REMAP_HERE = 1 | 2
"""MREMAP_MAYMOVE | MREMAP_FIXED"""
_ONLY_THERE = 0x100000
"""MAP_FIXED_NOREPLACE, which Python does not name; Linux before 4.17 takes it for a wish."""
_FAILED = ctypes.c_void_p(-1).value


class CachedFile:
    """The mapping of one file; it lasts as long as a view of it.

    view: all bytes, read-only though Python does not know it.
    """

    def __init__(self, path: Path, file: IO[bytes], num_bytes: int, has_holes: bool) -> None:
        self.path = path
        self._has_holes = has_holes
        self._file = file
        weakref.finalize(self, file.close).atexit = False
        self._address = _map(num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno())
        self.view = _view(self._address, num_bytes)
        weakref.finalize(self.view.obj, _unmap, self._address, num_bytes).atexit = False

    @classmethod
    def find(cls, path: Path, num_bytes: int) -> CachedFile | None:
        """Map a file, where most samples of it are in the page cache; else None."""
        if sys.platform != "linux" or not _CACHED_ONLY or not num_bytes:
            return None
        file = path.open("rb", buffering=0)
        samples = range(0, num_bytes, _SAMPLE_BYTES)
        missing = sum(not _is_cached(file, offset) for offset in samples)
        if missing * _MOST > len(samples):
            file.close()
            return None
        try:
            return cls(path, file, num_bytes, missing > 0)
        except OSError:  # no mappings left, or a limit on addresses: it is read then
            return None

    def span(self, start: int, end: int) -> memoryview:
        """Bytes of the file, in memory by now. Raises: FormatError where they cannot be read."""
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        if self._has_holes:  # in large reads, not as the pages are touched
            _LIBC.madvise(self._address + first, end - first, mmap.MADV_WILLNEED)
        try:
            _advise(self._address + first, end - first, _POPULATE_READ)
        except OSError as error:
            if error.errno != errno.EINVAL:  # an older Linux reads when the bytes are touched
                raise FormatError(
                    f"{self.path} ends early or cannot be read ({error.strerror}); pull the model "
                    f"again"
                ) from None
        return self.view[start:end]

    def forget(self, start: int, end: int) -> None:
        """Take whole pages out of this process's memory; the page cache keeps them."""
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        if end > first:
            _advise(self._address + first, end - first, mmap.MADV_DONTNEED)

    def cut(self, start: int, end: int, part_bytes: int) -> int:
        """Where a part that begins at start ends, so that the next one begins on a huge page."""
        last = (self._address + start) // part_bytes * part_bytes
        return min(last + part_bytes - self._address, end)

    def move(self, start: int, end: int) -> None:
        """Put memory of this process, with the same bytes, in the place of whole pages.

        Readers notice nothing: the system exchanges the pages at once. Raises: OSError, and the
        bytes are where they were.
        """
        size, target = end - start, self._address + start
        room = size + _HUGE_PAGE_BYTES
        base = _map(room, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        new = base + (target - base) % _HUGE_PAGE_BYTES
        try:
            _LIBC.madvise(new, size, mmap.MADV_HUGEPAGE)  # where there are none, small ones do
            self._fill(_view(new, size), start)
            self._exchange(new, target, size, start)
        except OSError:
            _unmap(base, room)
            raise
        _unmap(base, new - base)
        _unmap(new + size, base + room - new - size)

    def _exchange(self, new: int, target: int, size: int, start: int) -> None:
        try:
            _check(_LIBC.mremap(new, size, size, _REMAP_HERE, target) != _FAILED)
        except OSError:
            # It clears the place before it may find that there is no memory for the pages' tables.
            # Where there is none for a mapping either, the next reader ends the process.
            flags, file = mmap.MAP_SHARED | _ONLY_THERE, self._file.fileno()
            again = _LIBC.mmap(target, size, mmap.PROT_READ, flags, file, start)
            if again not in (_FAILED, target):
                _unmap(again, size)
            raise

    def _fill(self, into: memoryview, offset: int) -> None:
        done = 0
        while done < len(into):
            count = os.preadv(self._file.fileno(), [into[done:]], offset + done)
            if not count:
                raise OSError(errno.EIO, "the file ends early")
            done += count


def _is_cached(file: IO[bytes], offset: int) -> bool:
    try:
        return os.preadv(file.fileno(), [bytearray(1)], offset, _CACHED_ONLY) == 1
    except OSError:  # not in memory, or a file system that cannot tell
        return False


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = libc.mremap.restype = pointer
    libc.mremap.argtypes = (pointer, size, size, number, pointer)
    libc.madvise.argtypes = (pointer, size, number)
    libc.munmap.argtypes = (pointer, size)
    return libc


def _map(num_bytes: int, access: int, flags: int, file: int = -1) -> int:
    address = _LIBC.mmap(None, num_bytes, access, flags, file, 0)
    _check(address != _FAILED)
    return int(address)


def _view(address: int, num_bytes: int) -> memoryview:
    return memoryview((ctypes.c_char * num_bytes).from_address(address)).cast("B")


def _advise(address: int, num_bytes: int, advice: int) -> None:
    _check(_LIBC.madvise(address, num_bytes, advice) == 0)


def _unmap(address: int, num_bytes: int) -> None:
    if num_bytes:
        _LIBC.munmap(address, num_bytes)


def _check(well: bool) -> None:
    if not well:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if sys.platform == "linux":
    _LIBC = _libc()
