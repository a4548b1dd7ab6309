"""Page-aligned CPU memory for weights, and the CPUs this process may use.

How much memory is free: host_memory.py. Arenas and streams of accelerators: base.py.
"""

from __future__ import annotations

import mmap

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
    size = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
    huge = size >= HUGE_PAGE_BYTES and _HUGE_PAGE_ADVICE is not None
    memory = mmap.mmap(-1, size + (HUGE_PAGE_BYTES if huge else 0), **_FLAGS)
    if huge and _HUGE_PAGE_ADVICE is not None:
        memory.madvise(_HUGE_PAGE_ADVICE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    start = -tensor.data_ptr() % HUGE_PAGE_BYTES if huge else 0
    return tensor[start : start + num_bytes]
