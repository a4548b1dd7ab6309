"""The Device interface over the driver, and a whole engine on it.

Device memory of the stand-in is host memory, so the CPU's kernels can compute "on the device". They
are not on its stream: HostComputed waits where a kernel's stream would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ftengine.device.base import Event
from ftengine.device.cuda import GpuDevice
from ftengine.errors import CapacityError
from ftengine.gpu.driver import Driver
from ftengine.protocol import MemoryRequest
from ftengine.runtime import placement
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_models import sizes_of
from tests.ftengine.gpu.fake_driver import FakeGpu, wrap
from tests.ftengine.parity.tiny_engines import greedy, load_engine, make_tiny, random_ids

PAGE = 4096
PROMPTS = [random_ids(count, seed=count) for count in (5, 17, 40)]
SLOTS = 14


class HostComputed(GpuDevice):
    """Kernels run on the host, at once: they see the copies once the host has waited."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, wrap)

    def wait(self, event: Event) -> None:
        super().wait(event)
        self.compute.synchronize()

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        super().move(target, source)
        self.compute.synchronize()


@pytest.fixture
def device(gpu: FakeGpu) -> Iterator[GpuDevice]:
    device = GpuDevice(gpu.driver(), wrap)
    yield device
    device.close()


def test_memory_is_exact_aligned_and_given_back(gpu: FakeGpu, device: GpuDevice) -> None:
    before = device.free_bytes
    parts = [device.allocate(3 * PAGE + 5) for _ in range(3)]
    assert all(part.data_ptr() % PAGE == 0 for part in parts)
    assert all(part.numel() == 3 * PAGE + 5 for part in parts)
    assert before - device.free_bytes <= 3 * (4 * PAGE + 5)
    for part in parts:
        device.release(part)
    assert device.free_bytes == before
    assert gpu.live_bytes == 0


def test_memory_of_others_and_reserved_memory_are_not_free(device: GpuDevice) -> None:
    before = device.free_bytes
    foreign = device.driver.allocate(PAGE)
    device.reserve(2 * PAGE)
    assert device.free_bytes == before - 3 * PAGE
    with pytest.raises(
        CapacityError, match=f"needs {before} bytes more and has {before - 3 * PAGE}"
    ):
        device.allocate(before)
    device.reserve(-2 * PAGE)
    device.driver.free(foreign)
    assert device.free_bytes == before


def test_close_gives_everything_back(gpu: FakeGpu) -> None:
    device = GpuDevice(gpu.driver(), wrap)
    device.allocate(PAGE)
    source = torch.zeros(PAGE, dtype=torch.uint8)
    device.copy(device.allocate(PAGE), source)
    device.close()
    device.close()
    assert gpu.live_bytes == 0
    assert gpu.log("context_release") == ["context_release"]


def test_copies_come_after_earlier_compute(gpu: FakeGpu, device: GpuDevice) -> None:
    """What compute read from a slot is not overwritten under its feet."""
    gpu.set("delay_us", 2000)
    slot, seen = device.allocate(PAGE), device.allocate(PAGE)
    device.driver.call("fill", slot.data_ptr(), 1, PAGE, device.compute.handle)
    device.move(seen, slot)  # a kernel of an earlier layer that reads the slot, slowly
    source = torch.full((PAGE,), 2, dtype=torch.uint8)
    device.copy(slot, source)
    event = device.record()
    assert not device.passed(event)
    device.synchronize()
    assert device.passed(event)
    assert set(seen.tolist()) == {1}
    assert set(slot.tolist()) == {2}


def test_compute_after_wait_sees_the_copy(gpu: FakeGpu, device: GpuDevice) -> None:
    gpu.set("delay_us", 2000)
    slot, seen = device.allocate(PAGE), device.allocate(PAGE)
    source = torch.full((PAGE,), 2, dtype=torch.uint8)
    device.copy(slot, source)
    device.wait(device.record())
    device.move(seen, slot)
    device.compute.synchronize()
    assert set(seen.tolist()) == {2}


def test_events_are_used_again(device: GpuDevice) -> None:
    handles = set()
    for _ in range(20):
        event = device.record()
        device.wait(event)
        handles.add(event.event.handle)  # type: ignore[attr-defined]
        del event
    assert len(handles) == 1


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = sizes_of("mixtral", layers=4, num_experts=16, top_k=2)
    return make_tiny("mixtral", tmp_path_factory.mktemp("mixtral"), sizes=sizes)[1]


@pytest.fixture
def on_gpu(
    gpu: FakeGpu, mixtral: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Engine]]:
    """An engine whose device is the driver's."""
    engines: list[Engine] = []

    def load(**options: object) -> Engine:
        engines.append(load_engine(mixtral, parallel=5, device="emulated", **options))
        return engines[-1]

    monkeypatch.setattr(placement, "_emulated", lambda config: HostComputed(gpu.driver()))
    yield load
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def expected(mixtral: Path) -> list[tuple[int, ...]]:
    engine = load_engine(mixtral, parallel=5)
    tokens = [item.token_ids for item in greedy(engine, PROMPTS, 24)]
    engine.close()
    return tokens


@pytest.mark.parametrize("strategy", ["fetch", "split"])
def test_an_engine_on_the_driver_gives_the_cpus_tokens(
    gpu: FakeGpu,
    on_gpu: Callable[..., Engine],
    expected: list[tuple[int, ...]],
    strategy: str,
) -> None:
    """Decode and prefill through the slot pool, with slow copies into memory that holds NaN."""
    gpu.set("delay_us", 100)
    engine = on_gpu(strategy=strategy, expert_slots=SLOTS)
    assert [item.token_ids for item in greedy(engine, PROMPTS, 24)] == expected
    assert len(gpu.log("^copy_in")) > 24


def test_prefill_streams_layers_over_the_driver(
    gpu: FakeGpu, on_gpu: Callable[..., Engine], expected: list[tuple[int, ...]]
) -> None:
    """Two half-layer buffers fit; resident experts are used where they lie, misses come over."""
    engine = on_gpu(strategy="fetch", expert_slots=3 * 16)
    gpu.set("delay_us", 100)
    assert [item.token_ids for item in greedy(engine, PROMPTS, 24)] == expected
    stats = engine.info.experts
    assert stats is not None
    assert stats.streamed > 0
    assert len(gpu.log("^run copy_in")) == stats.streamed + stats.fills


def test_slots_are_resized_on_the_driver(
    gpu: FakeGpu, on_gpu: Callable[..., Engine], expected: list[tuple[int, ...]]
) -> None:
    engine = on_gpu(strategy="fetch", expert_slots=SLOTS)
    first = gpu.live_bytes
    for slots in (40, 8, SLOTS):
        engine.resize_sync(MemoryRequest(expert_slots=slots))
        assert [item.token_ids for item in greedy(engine, PROMPTS, 24)] == expected
        assert gpu.live_bytes * SLOTS // first in (slots, slots - 1, slots + 1)
