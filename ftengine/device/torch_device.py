"""Page-aligned CPU memory for weights, and the CPUs this process may use.

How much memory is free: host_memory.py. Arenas and streams of accelerators: base.py.
"""

from __future__ import annotations

import math
import mmap
import weakref

import torch

PAGE_BYTES = 4096
HUGE_PAGE_BYTES = 2 << 20
_BLOCK_BYTES = 64 << 20
_HUGE_PAGE_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_FLAGS = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
"""Private: Python's default is shared memory, which most systems never back with huge pages."""


class WeightArena:
    """Page-aligned CPU memory, cut from large blocks so that huge pages can back it.

    A block lives as long as a tensor cut from it.
    """

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self.taken_bytes = 0

    def take(self, num_bytes: int) -> torch.Tensor:
        """Shape: uint8 [num_bytes], 4096-aligned, zeroed."""
        size = -(-max(num_bytes, 1) // PAGE_BYTES) * PAGE_BYTES
        self.taken_bytes += size
        if size >= _BLOCK_BYTES // 4:
            return page_aligned(size)[:num_bytes]
        if self._used + size > self._block.numel():
            self._block, self._used = page_aligned(_BLOCK_BYTES), 0
        start = self._used
        self._used += size
        return self._block[start : start + num_bytes]


def page_aligned(num_bytes: int) -> torch.Tensor:
    """Anonymous memory that starts on a page and may use huge pages.

    Shape: uint8 [num_bytes], zeroed.
    """
    memory, tensor = _map(num_bytes)
    _advise(memory)
    return tensor


def unwritten(*shape: int) -> torch.Tensor:
    """Zeros that take memory only where they are written, in small pages.

    torch.zeros writes them itself as soon as the C library takes such sizes from its heap, which
    it does once larger blocks were freed. Shape: float32 [*shape].
    """
    if 0 in shape:
        return torch.zeros(shape)
    _, tensor = _map(4 * math.prod(shape))
    return tensor.view(torch.float32).view(shape)


class LateHugePages:
    """Memory as page_aligned gives it that uses huge pages from `begin` on only.

    The system clears a huge page whole as it is first written. In a pool whose layers are all begun
    by the first prompt that is a hundred megabytes and tenths of a second before the first token.
    """

    def __init__(self) -> None:
        self._held: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._begun = False

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Shape: uint8 [num_bytes], zeroed."""
        memory, tensor = _map(num_bytes)
        self._held.add(memory)
        if self._begun:
            _advise(memory)
        return tensor

    def begin(self) -> None:
        """What is written first from now on, and in time what was written before."""
        self._begun = True
        for memory in tuple(self._held):
            _advise(memory)


def _map(num_bytes: int) -> tuple[mmap.mmap, torch.Tensor]:
    """Memory, and num_bytes of it; it lasts as long as either."""
    size = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
    huge = size >= HUGE_PAGE_BYTES and _HUGE_PAGE_ADVICE is not None
    memory = mmap.mmap(-1, size + (HUGE_PAGE_BYTES if huge else 0), **_FLAGS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    start = -tensor.data_ptr() % HUGE_PAGE_BYTES if huge else 0
    return memory, tensor[start : start + num_bytes]


def _advise(memory: mmap.mmap) -> None:
    if _HUGE_PAGE_ADVICE is not None and len(memory) >= 2 * HUGE_PAGE_BYTES:
        memory.madvise(_HUGE_PAGE_ADVICE)
