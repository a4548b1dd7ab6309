"""The emulated device: what is not waited for is NaN, what does not fit is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ftengine.device.emulated import EmulatedDevice, EmulatedSettings
from ftengine.errors import CapacityError, EngineError
from ftengine.quant import FORMATS, format_named

PAGE = 4096


@pytest.fixture
def device() -> Iterator[EmulatedDevice]:
    made = EmulatedDevice(EmulatedSettings(16 * PAGE, seed=5, delay_every=2))
    yield made
    made.close()
    made.close()


def host(value: int, size: int = PAGE) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8)


def test_copy_is_invisible_until_its_event_is_waited_for(device: EmulatedDevice) -> None:
    memory = device.allocate(2 * PAGE)
    first, second = memory[:PAGE], memory[PAGE:]
    device.copy(first, host(1))
    event = device.record()
    device.copy(second, host(2))
    later = device.record()
    assert bool((memory == 0xFF).all())
    device.wait(event)
    assert torch.equal(first, host(1))
    assert bool((second == 0xFF).all())
    device.wait(later)
    device.wait(later)
    assert torch.equal(second, host(2))


def test_recycled_memory_is_poisoned_before_it_is_filled_again(device: EmulatedDevice) -> None:
    memory = device.allocate(PAGE)
    for value in (1, 2, 3):
        device.copy(memory, host(value))
        assert bool((memory == 0xFF).all())
        device.wait(device.record())
        assert torch.equal(memory, host(value))


def test_copies_of_one_stream_keep_their_order(device: EmulatedDevice) -> None:
    memory = device.allocate(PAGE)
    for value in range(20):
        device.copy(memory, host(value))
    device.wait(device.record())
    assert torch.equal(memory, host(19))


# Tables of whole numbers are never experts, so they have no slot to be poisoned.
@pytest.mark.parametrize("name", sorted({item.name for item in FORMATS} - {"i32", "i64"}))
def test_poison_reads_as_nan_in_every_format(name: str) -> None:
    fmt = format_named(name)
    row = np.full((1, fmt.row_bytes(256)), 0xFF, dtype=np.uint8)
    with np.errstate(all="ignore"):
        assert bool(np.isnan(fmt.dequantize(row)).any())


def test_memory_is_limited_and_counted(device: EmulatedDevice) -> None:
    memory = device.allocate(10 * PAGE)
    device.reserve(4 * PAGE)
    with pytest.raises(CapacityError, match=rf"needs {3 * PAGE} bytes more and has {2 * PAGE} of"):
        device.allocate(3 * PAGE)
    device.release(memory)
    device.reserve(-4 * PAGE)
    assert device.free_bytes == device.total_bytes


def test_allocations_fail_on_demand(device: EmulatedDevice) -> None:
    device.fail_allocations(1)
    with pytest.raises(CapacityError, match="refused"):
        device.allocate(PAGE)
    assert device.allocate(PAGE).numel() == PAGE


def test_failed_copy_is_told_to_whoever_waits(device: EmulatedDevice) -> None:
    memory = device.allocate(PAGE)

    class Broken:
        def copy(self) -> None:
            raise OSError("the disk is gone")

    device.copy(memory, host(1))
    device._pending[-1].source = Broken()  # type: ignore[assignment]
    device._work.put(device._pending[-1])
    with pytest.raises(EngineError, match="the disk is gone"):
        device.wait(device.record())
