"""A stand-in for the GPU's driver library, built once per run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ftengine.device.cuda import GpuDevice
from ftengine.gpu import kernel_cache
from ftengine.gpu.driver import Driver
from ftengine.runtime import assemble, gpu_open
from tests.ftengine.gpu import fake_driver
from tests.ftengine.gpu.fake_driver import FakeGpu, wrap


@pytest.fixture(scope="session")
def fake_cuda() -> FakeGpu:
    command = fake_driver.compiler()
    if command is None:
        pytest.skip("no C++ compiler to build the fake driver library with (pip install ziglang)")
    return FakeGpu(fake_driver.build(command, fake_driver.ROOT / "build" / "tests"))


@pytest.fixture
def gpu(fake_cuda: FakeGpu) -> Iterator[FakeGpu]:
    fake_cuda.reset()
    yield fake_cuda
    held = (fake_cuda.live_bytes, fake_cuda.pinned_bytes)
    assert held == (0, 0), "device memory and pinned memory that the test left behind"


@pytest.fixture
def driver(gpu: FakeGpu) -> Iterator[Driver]:
    driver = gpu.driver()
    yield driver
    driver.close()


@pytest.fixture
def cuda_is_there(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine with --device cuda finds the stand-in."""
    monkeypatch.setattr(kernel_cache, "installed_triton", lambda: "3.9.9")
    monkeypatch.setattr(gpu_open, "installed_backend", lambda _: "cuda")
    monkeypatch.setattr(gpu_open, "check_torch", lambda _: None)
    monkeypatch.setattr(assemble, "open_device", lambda _: GpuDevice(gpu.driver(), wrap))
