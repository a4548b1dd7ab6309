"""The driver wrapper against a stand-in library: memory, errors, symbols, both flavours."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path

import pytest

from ftengine.errors import CapacityError, EngineError
from ftengine.gpu import api
from ftengine.gpu.driver import Driver, Target
from ftengine.gpu.stream import Event, Stream, capture
from tests.ftengine.gpu.fake_driver import FakeGpu


def test_device_is_described(driver: Driver) -> None:
    info = driver.info
    assert info.name == "Fake GPU"
    assert info.target == Target("cuda", "89", 32)
    assert info.target.label == "sm_89"
    assert info.shared_bytes == 101376
    assert info.memory_ops


def test_amd_device_is_described(gpu: FakeGpu) -> None:
    info = gpu.driver(api.HIP).info
    assert info.target == Target("hip", "gfx1100", 32)
    assert not info.memory_ops


def test_missing_library_names_what_was_tried() -> None:
    nowhere = api.Api("cuda", "NVIDIA driver", ("libnothing.so.1",), {})
    with pytest.raises(EngineError, match=r"libnothing\.so\.1.*device cpu") as caught:
        Driver.open((nowhere,))
    assert caught.value.code == "no_gpu"


def test_missing_device_is_refused(gpu: FakeGpu) -> None:
    gpu.set("devices", 0)
    with pytest.raises(EngineError, match="has 0 GPUs, number 0") as caught:
        gpu.driver()
    assert caught.value.code == "no_gpu"


def test_too_old_library_names_the_symbol() -> None:
    with pytest.raises(EngineError, match="has no cuInit; it is too old"):
        Driver(ctypes.CDLL(None), api.CUDA)


def test_lack_of_memory_says_need_and_have(driver: Driver) -> None:
    free, total = driver.memory_info()
    with pytest.raises(CapacityError, match=f"needs {total + 1} bytes more and has {free}"):
        driver.allocate(total + 1)


def test_memory_is_accounted_for(driver: Driver) -> None:
    before, _ = driver.memory_info()
    address = driver.allocate(1 << 20)
    assert driver.memory_info()[0] == before - (1 << 20)
    driver.free(address)
    assert driver.memory_info()[0] == before


def test_refused_pinning_is_an_error_with_the_function(gpu: FakeGpu, driver: Driver) -> None:
    gpu.set("pin_limit", 4096)
    memory = ctypes.create_string_buffer(1 << 16)
    with pytest.raises(CapacityError, match="cuMemHostRegister_v2 gave CUDA_ERROR_OUT_OF_MEMORY"):
        driver.register_host(ctypes.addressof(memory), 1 << 16)


def test_lost_device_is_a_typed_error(gpu: FakeGpu, driver: Driver) -> None:
    gpu.set("sticky", 700)
    with pytest.raises(EngineError, match="load the model again") as caught:
        driver.memory_info()
    gpu.set("sticky", 0)
    assert caught.value.code == "gpu_lost"
    assert caught.value.retryable


def test_copies_go_there_and_back_in_order(gpu: FakeGpu, driver: Driver) -> None:
    stream = Stream(driver)
    device = driver.allocate(8)
    host = driver.allocate_host(16)
    source = (ctypes.c_char * 8).from_address(host)
    source.raw = b"experts!"
    stream.copy_in(device, host, 8)
    stream.copy_out(host + 8, device, 8)
    stream.synchronize()
    assert ctypes.string_at(host + 8, 8) == b"experts!"
    assert gpu.log("^run") == ["run copy_in 8 stream 0", "run copy_out 8 stream 0"] or gpu.log(
        "^run"
    )
    driver.free(device)
    driver.free_host(host)
    stream.close()


def test_events_order_two_streams(gpu: FakeGpu, driver: Driver) -> None:
    """The second stream's copy reads what the slow copy of the first brings."""
    gpu.set("delay_us", 3000)
    first, second, event = Stream(driver), Stream(driver), Event(driver)
    device, host = driver.allocate(4), driver.allocate_host(8)
    ctypes.memmove(host, b"abcd____", 8)
    first.copy_in(device, host, 4)
    first.record(event)
    assert not event.passed
    second.wait(event)
    second.copy_out(host + 4, device, 4)
    second.synchronize()
    assert event.passed
    assert ctypes.string_at(host, 8) == b"abcdabcd"
    for item in (first, second, event):
        item.close()
    driver.free(device)
    driver.free_host(host)


def test_error_of_a_capture_ends_it(driver: Driver) -> None:
    stream = Stream(driver)
    with pytest.raises(EngineError, match="CAPTURE_UNSUPPORTED"):
        capture(stream, lambda: driver.free(driver.allocate(16)))
    stream.synchronize()
    stream.close()


def test_fork_that_does_not_rejoin_is_an_error(driver: Driver) -> None:
    stream, other, event = Stream(driver), Stream(driver), Event(driver)
    memory = driver.allocate(16)

    def enqueue() -> None:
        stream.record(event)
        other.wait(event)
        other.fill(memory, 0, 16)

    with pytest.raises(EngineError, match="CAPTURE_UNJOINED"):
        capture(stream, enqueue)
    driver.free(memory)
    for item in (stream, other, event):
        item.close()


def test_every_symbol_stands_in_the_vendors_headers() -> None:
    """Triton's wheel carries both headers."""
    headers = _triton_headers()
    cuda = (headers / "nvidia/include/cuda.h").read_text()
    hip = (headers / "amd/include/hip/hip_runtime_api.h").read_text()
    for call in (*api.CALLS.values(), *api.CUDA_ONLY.values(), *api.HIP_ONLY.values()):
        if call.cuda:
            assert re.search(rf"\b{call.cuda}\b", cuda), call.cuda
        if call.hip:
            assert re.search(rf"\b{call.hip}\b", hip), call.hip


def test_versions_of_cuda_symbols_are_those_a_program_would_get() -> None:
    """cuX in a program means the newest cuX_vN that cuda.h maps it to."""
    cuda = (_triton_headers() / "nvidia/include/cuda.h").read_text()
    for call in (*api.CALLS.values(), *api.CUDA_ONLY.values()):
        if not call.cuda:
            continue
        plain = re.sub(r"_v\d$", "", call.cuda)
        # older drivers lack cuEventElapsedTime_v2, which has the same parameters
        mapped = re.search(rf"#define +{plain} +(?:__CUDA_API_PT[DS][SZ]\()?(\w+)", cuda)
        if mapped and call.cuda != "cuEventElapsedTime":
            assert mapped[1] == call.cuda


def _triton_headers() -> Path:
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        pytest.skip("Triton is not installed; its wheel carries the headers")
    return Path(spec.origin).parent / "backends"
