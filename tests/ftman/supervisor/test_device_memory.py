"""GPU memory of an engine: read before its load, waited for after its end, for a bounded time."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ftman.supervisor import device_memory, gpu_probe
from ftman.supervisor.device_memory import RETURN_LIMIT_S, DeviceMemoryWatch
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeScript
from tests.fakes.processes import children
from tests.ftman.supervisor.harness import make_spec, supervised, until

GB = 10**9


class Driver:
    """Answers in turn, the last one for ever."""

    def __init__(self, answers: Iterable[int | None]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self) -> int | None:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def lives(watch: DeviceMemoryWatch, clock: FakeClock) -> str:
    """From before the load to after the end."""
    await watch.before_load()
    await watch.loaded()
    return await clock.drive(watch.returned("tiny"), step_s=1.0)


def life(clock: FakeClock, device: str, driver: Driver) -> str:
    return asyncio.run(lives(DeviceMemoryWatch(clock, device, driver), clock))


def test_memory_that_comes_back_late_is_waited_for() -> None:
    driver = Driver([20 * GB, 8 * GB, 8 * GB, 8 * GB, 19 * GB])
    assert life(FakeClock(), "cuda", driver) == ""
    assert driver.asked == 5


def test_memory_that_stays_away_is_said_after_a_bounded_time() -> None:
    clock = FakeClock()
    begun = clock.monotonic()
    said = life(clock, "cuda", Driver([20 * GB, 8 * GB, 10 * GB]))
    assert said.startswith("of 12.0 GB of GPU memory that the engine of tiny held, 2.0 GB came")
    assert "nvidia-smi" in said
    assert RETURN_LIMIT_S <= clock.monotonic() - begun < RETURN_LIMIT_S + 5


@pytest.mark.parametrize(
    ("device", "answers", "asked"),
    [
        ("cpu", [20 * GB], 0),
        ("emulated", [20 * GB], 0),
        ("auto", [None], 1),
        ("auto", [20 * GB, 20 * GB], 2),
        ("cuda", [20 * GB, None], 2),
    ],
    ids=["cpu", "emulated", "no gpu", "took nothing", "driver went away"],
)
def test_nobody_waits_where_nothing_was_taken(
    device: str, answers: list[int | None], asked: int
) -> None:
    driver = Driver(answers)
    assert life(FakeClock(), device, driver) == ""
    assert driver.asked == asked


def test_an_engine_that_never_was_ready_is_not_waited_for() -> None:
    async def main() -> str:
        watch = DeviceMemoryWatch(FakeClock(), "cuda", Driver([20 * GB]))
        await watch.before_load()
        return await watch.returned("tiny")

    assert asyncio.run(main()) == ""


def test_the_next_load_waits_for_the_memory_of_the_last_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that is gone counts as gone only once its memory is back, or was waited for."""
    driver = Driver([20 * GB, 8 * GB, 8 * GB, 8 * GB, 20 * GB])

    async def main() -> list[int]:
        seen = []
        async with supervised(tmp_path, FakeScript(), probe=driver) as (supervisor, _):
            async with supervisor.lease(make_spec(device="cuda"), keep_alive_s=None):
                pass
            await until(lambda: driver.asked == 2)
            await supervisor.unload("aaaa")
            seen.append(driver.asked)
            assert supervisor.running() == []
        return seen

    assert asyncio.run(main()) == [5]
    assert "GPU memory" not in caplog.text


def test_a_fault_in_the_last_question_is_logged_and_the_engine_counts_as_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [20 * GB, 8 * GB]

    async def probe() -> int | None:
        return answers.pop(0)

    async def main() -> None:
        async with supervised(tmp_path, FakeScript(), probe=probe) as (supervisor, _):
            async with supervisor.lease(make_spec(device="cuda"), keep_alive_s=None):
                pass
            await until(lambda: not answers)
            unloading = asyncio.ensure_future(supervisor.unload("aaaa"))
            await asyncio.wait({unloading}, timeout=20)
            assert unloading.done()
            assert supervisor.running() == []

    asyncio.run(main())
    assert "pop from empty list" in caplog.text


class Library:
    """NVIDIA's management library with two GPUs."""

    def __init__(self, free: Callable[[int], int], status: int = 0) -> None:
        self._free = free
        self._status = status
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += self._status == 0
        return self._status

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:
        out._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, out: Any) -> int:
        out._obj.value = 7000 + index
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, out: Any) -> int:
        assert device.value is not None
        out._obj.total, out._obj.free = 1000, self._free(device.value - 7000)
        return 0


def test_the_probe_sums_nvidias_gpus_and_closes_the_library() -> None:
    library = Library(lambda index: 10 + index)
    assert gpu_probe.nvidia_free(library) == 21
    assert library.open == 0
    assert gpu_probe.nvidia_free(Library(lambda _: 1, status=9)) is None


def test_the_probe_reads_amds_files(tmp_path: Path) -> None:
    assert gpu_probe.amd_free(tmp_path) is None
    for card, used in (("card0", 300), ("card1", 100)):
        folder = tmp_path / "sys/class/drm" / card / "device"
        folder.mkdir(parents=True)
        (folder / "mem_info_vram_total").write_text("1000\n")
        (folder / "mem_info_vram_used").write_text(f"{used}\n")
    (tmp_path / "sys/class/drm/card2/device").mkdir(parents=True)
    assert gpu_probe.amd_free(tmp_path) == 1600


def test_no_process_is_started_where_no_driver_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_memory.sys, "platform", "linux")
    assert not device_memory.driver_seen(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").write_text("")
    assert device_memory.driver_seen(tmp_path)


def test_a_probe_that_hangs_or_fails_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "driver_seen", lambda: True)
    monkeypatch.setattr(device_memory, "PROBE_LIMIT_S", 0.05)
    monkeypatch.setattr(device_memory.sys, "executable", "/bin/sleep")
    monkeypatch.setattr(device_memory, "_ARGUMENTS", ("5",))
    assert asyncio.run(device_memory.free_bytes()) is None
    monkeypatch.setattr(device_memory.sys, "executable", "/nowhere/python")
    assert asyncio.run(device_memory.free_bytes()) is None


def test_a_probe_that_nobody_waits_for_any_more_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "driver_seen", lambda: True)
    monkeypatch.setattr(device_memory.sys, "executable", "/bin/sleep")
    monkeypatch.setattr(device_memory, "_ARGUMENTS", ("60",))

    async def main() -> None:
        before = children()
        asking = asyncio.ensure_future(device_memory.free_bytes())
        await until(lambda: children() != before)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert children() == before

    asyncio.run(main())
