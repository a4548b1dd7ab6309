"""Memory that uses huge pages at once, or from a moment on."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import pytest
import torch

from ftengine.device.torch_device import (
    HUGE_PAGE_BYTES,
    LateHugePages,
    page_aligned,
    unwritten,
)

SIZE = 3 * HUGE_PAGE_BYTES
_RANGE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ")


def resident_bytes(tensor: torch.Tensor) -> int:
    """What of the mapping that a tensor begins in is in memory."""
    return int(_told(tensor, "Rss:").split()[0]) * 1024


def may_be_huge(tensor: torch.Tensor) -> bool:
    """Whether the system was told that this memory may use huge pages."""
    return "hg" in _told(tensor, "VmFlags:").split()


def _told(tensor: torch.Tensor, what: str) -> str:
    """A line of the mapping that a tensor begins in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        found = _RANGE.match(line)
        if found is not None:
            low, high = (int(text, 16) for text in found.groups())
            inside = low <= tensor.data_ptr() < high
        elif inside and line.startswith(what):
            return line.removeprefix(what)
    raise AssertionError("no such mapping")


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_linux
def test_memory_may_use_huge_pages_from_the_start_or_from_begin_on() -> None:
    assert may_be_huge(page_aligned(SIZE))
    pages = LateHugePages()
    before = pages.allocate(SIZE)
    assert not may_be_huge(before)
    before.fill_(7)
    pages.begin()
    assert may_be_huge(before)
    assert bool((before == 7).all())
    assert may_be_huge(pages.allocate(SIZE))


@pytest.mark.parametrize("num_bytes", [1, 4096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, SIZE + 5])
def test_memory_is_aligned_zeroed_and_as_long_as_asked(num_bytes: int) -> None:
    for tensor in (page_aligned(num_bytes), LateHugePages().allocate(num_bytes)):
        assert tensor.shape == (num_bytes,)
        assert tensor.data_ptr() % 4096 == 0
        assert not tensor.any()


@needs_linux
def test_memory_that_nobody_uses_is_not_held() -> None:
    pages = LateHugePages()
    tensor = pages.allocate(SIZE)
    assert len(pages._held) == 1
    del tensor
    gc.collect()
    assert len(pages._held) == 0
    pages.begin()


def test_unwritten_memory_is_zeros_of_any_shape() -> None:
    for shape in ((3, 5), (2, 4, 1 << 20), (7, 0), (0, 2, 3)):
        tensor = unwritten(*shape)
        assert tensor.shape == shape
        assert tensor.dtype == torch.float32
        assert tensor.is_contiguous()
        assert not tensor.any()


@needs_linux
def test_only_what_is_written_takes_memory() -> None:
    tensor = unwritten(1024, 4096)
    before = resident_bytes(tensor)
    tensor[:16] = 1
    assert resident_bytes(tensor) - before < 1 << 20
    assert bool((tensor[:16] == 1).all())
