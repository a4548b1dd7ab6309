"""Memory that uses huge pages at once, or from a moment on."""

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import pytest
import torch

from ftengine.device.torch_device import HUGE_PAGE_BYTES, LateHugePages, page_aligned

SIZE = 3 * HUGE_PAGE_BYTES
_RANGE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ")


def may_be_huge(tensor: torch.Tensor) -> bool:
    """Whether the system was told that this memory may use huge pages."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        found = _RANGE.match(line)
        if found is not None:
            low, high = (int(text, 16) for text in found.groups())
            inside = low <= tensor.data_ptr() < high
        elif inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
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
