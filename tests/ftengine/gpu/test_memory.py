"""Pinned blocks, and banks that are pinned by a thread after they are filled."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from ftengine.errors import EngineError
from ftengine.gpu.driver import Driver
from ftengine.gpu.memory import LINE_BYTES, PinnedBanks, PinnedBlock, Region
from tests.ftengine.gpu.fake_driver import FakeGpu

BANK = 1 << 16


@pytest.fixture
def regions() -> Iterator[list[Region]]:
    buffers = [ctypes.create_string_buffer(BANK) for _ in range(4)]
    yield [Region(ctypes.addressof(buffer), BANK) for buffer in buffers]
    buffers.clear()


def test_parts_of_a_block_share_no_cache_line(driver: Driver) -> None:
    block = PinnedBlock(driver, 3 * LINE_BYTES)
    first, second = block.take(4), block.take(LINE_BYTES + 1)
    assert second - first == LINE_BYTES
    assert ctypes.string_at(first, 3 * LINE_BYTES) == bytes(3 * LINE_BYTES)
    with pytest.raises(EngineError, match="256 bytes of pinned memory are needed, 192 were"):
        block.take(1)
    block.close()
    block.close()


def test_banks_are_pinned_whole_and_let_go(
    gpu: FakeGpu, driver: Driver, regions: list[Region]
) -> None:
    banks = PinnedBanks(driver, regions)
    assert not banks.is_pinned(regions[0].address)
    banks.start()
    assert banks.wait(10)
    assert banks.complete
    assert banks.pinned_bytes == gpu.pinned_bytes == 4 * BANK
    assert banks.is_pinned(regions[2].address + BANK - 1)
    assert gpu.log("host_register") == [f"host_register {BANK}"] * 4
    banks.close()
    assert gpu.pinned_bytes == 0
    banks.close()


def test_a_limit_on_pinned_memory_is_said_and_kept(
    gpu: FakeGpu, driver: Driver, regions: list[Region]
) -> None:
    gpu.set("pin_limit", 2 * BANK + 100)
    banks = PinnedBanks(driver, regions)
    banks.start()
    assert banks.wait(10)
    assert not banks.complete
    assert banks.pinned_bytes == 2 * BANK
    assert banks.refused.startswith(f"{2 * BANK} bytes of experts stay unpinned (cuMemHostRegister")
    assert banks.is_pinned(regions[1].address)
    assert not banks.is_pinned(regions[2].address)
    banks.close()
    assert gpu.pinned_bytes == 0


def test_banks_that_were_never_started_close(driver: Driver, regions: list[Region]) -> None:
    PinnedBanks(driver, regions).close()
