"""Rates measured with a GPU, on the stand-in: what of, what they take, what is said without."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftengine.calibrate import gpu as calibrate
from ftengine.calibrate.gpu import measure_gpu
from ftengine.device.cuda import GpuDevice
from ftengine.errors import CapacityError, EngineError
from ftengine.experts.gpu import StoreSettings
from ftengine.experts.gpu_store import GpuStore
from ftengine.gpu import kernel_cache
from ftengine.gpu.kernel_cache import KernelCache
from ftengine.gpu.launcher import Launcher
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton.builds import TABLE
from ftengine.runtime.placement import FIRST_RATES, measure_rates
from tests.ftengine.calibrate.test_cpu import SteppingClock
from tests.ftengine.gpu.fake_driver import FakeGpu, wrap
from tests.ftengine.gpu.host_experts import PlayedStore
from tests.ftengine.gpu.host_kernels import fake_compiler
from tests.ftengine.kernels.operand_makers import make_bank

PLACES = 2
"""Experts of one token."""


@pytest.fixture(scope="module")
def bank() -> ExpertBank:
    return make_bank("q8_0", "q8_0", 12, 64, 32)


@pytest.fixture
def tools(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuTools]:
    monkeypatch.setattr(kernel_cache, "installed_triton", lambda: "3.9.9")
    monkeypatch.setattr(calibrate, "LINK_BYTES", 64 << 10)
    native = NativeKernels.load(num_threads=2)
    PlayedStore(gpu, native, None).install()  # type: ignore[arg-type]
    device = GpuDevice(gpu.driver(), wrap)
    cache = KernelCache(TABLE, tmp_path, fake_compiler, None)
    made = GpuTools(device, Launcher(device.driver, TABLE, cache), native, "f32")
    yield made
    made.launcher.close()
    device.close()


def test_each_rate_is_bytes_by_seconds_of_what_was_done(
    tools: GpuTools, gpu: FakeGpu, bank: ExpertBank
) -> None:
    """By a clock that takes one second for everything: only bytes are left to differ."""
    before = gpu.live_bytes
    rates = measure_gpu(tools, bank, places=5, clock=SteppingClock())
    rows = (64 << 10) // bank.row_bytes
    assert rates.link_bytes_per_s == rows * bank.row_bytes
    # 12 experts, five at a time: two calls
    assert rates.host_bytes_per_s == rates.host_left_bytes_per_s == 10 * bank.row_bytes
    assert gpu.live_bytes == before


def test_the_cpu_is_timed_again_while_the_link_works(
    tools: GpuTools, gpu: FakeGpu, bank: ExpertBank
) -> None:
    gpu.clear_log()
    rates = measure_gpu(tools, bank, places=2)
    assert 0 < rates.host_left_bytes_per_s <= rates.host_bytes_per_s
    assert len(gpu.log("copy_rows")) > calibrate.ROUNDS + 1


def store_of(tools: GpuTools, bank: ExpertBank, strategy: str) -> GpuStore:
    store = GpuStore(tools, StoreSettings(strategy, FIRST_RATES, None, 2))
    store.add_layer(bank, None)
    return store


def test_a_planner_starts_from_what_was_measured(tools: GpuTools, bank: ExpertBank) -> None:
    store = store_of(tools, bank, "split")
    assert measure_rates(store, tools, PLACES) == ()
    store.start(4)
    assert store.planner is not None
    assert store.planner.rates.link_bytes_per_s != FIRST_RATES.link_bytes_per_s
    store.close()


@pytest.mark.parametrize("strategy", ["fetch", "cpu", "resident"])
def test_nothing_is_measured_where_nothing_is_divided(
    tools: GpuTools, gpu: FakeGpu, bank: ExpertBank, strategy: str
) -> None:
    gpu.clear_log()
    assert measure_rates(store_of(tools, bank, strategy), tools, PLACES) == ()
    assert not gpu.log("copy_rows")


def test_without_a_measurement_the_assumed_rates_are_named(
    tools: GpuTools, bank: ExpertBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = dataclasses.replace(tools, native=None)
    with pytest.raises(EngineError, match="native kernels are missing"):
        measure_gpu(bare, bank, 2)
    (note,) = measure_rates(store_of(bare, bank, "auto"), bare, PLACES)
    assert "not measured (the native kernels are missing)" in note
    assert "12 GB/s and the CPU 40 GB/s" in note


def test_a_full_device_leaves_nothing_behind(
    tools: GpuTools, gpu: FakeGpu, bank: ExpertBank
) -> None:
    before = gpu.live_bytes
    tools.device.reserve(tools.device.free_bytes)
    with pytest.raises(CapacityError):
        measure_gpu(tools, bank, 2)
    assert gpu.live_bytes == before
