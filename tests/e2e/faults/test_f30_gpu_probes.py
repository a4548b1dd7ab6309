"""F30: a GPU's driver that hangs, lies, does not fit, or gives less memory back each time.

No GPU is here: NVIDIA's tool and the probe of free memory are played.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from ftman.config import Config, EngineSettings, Paths
from ftman.doctor import checks
from ftman.doctor.checks import PROBLEM, Finding, Patient
from ftman.supervisor import hardware
from ftman.supervisor.device_memory import RETURN_LIMIT_S, DeviceMemoryWatch
from tests.e2e.faults.manager_process import runs
from tests.fakes.clock import FakeClock

LIMIT_S = 0.3
SLACK_S = 10.0
GB = 10**9
TOOLS = {
    "lost": ("echo 'Unable to determine the device handle: GPU is lost'; exit 15", "GPU is lost"),
    "mismatch": (
        "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18",
        "version mismatch",
    ),
    "not loaded": ("echo 'NVIDIA-SMI has failed'; exit 9", "has failed"),
    "hangs": ("exec sleep 30", "TimeoutExpired"),
    "silent": ("exit 3", "ended with 3"),
    "killed": ("kill -9 $$", "ended with -9"),
    "no program": ("", "nvidia-smi failed"),
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine in whose PCI list an NVIDIA GPU stands; its tool lies in `bin`."""
    device = tmp_path / "root" / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("class", "0x030000"), ("device", "0x2684")):
        (device / name).write_text(text)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(hardware, "DRIVER_LIMIT_S", LIMIT_S)
    return tmp_path


def install_tool(machine: Path, script: str) -> None:
    """What nvidia-smi does from now on."""
    path = machine / "bin" / "nvidia-smi"
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n" if script else "#!/nonexistent/sh\n")
    path.chmod(0o755)


def gpu_finding(machine: Path, device: str) -> Finding:
    """What the doctor says of the GPU."""
    paths = Paths(machine / "home", machine / "home" / "models")
    config = Config(paths, engine=EngineSettings(device=device))
    root = machine / "root"
    return checks._gpu(Patient(config, {}, root=root), hardware.gpus(root))


@runs
def test_a_driver_in_trouble_is_named_in_time_and_never_passed_over(
    machine: Path, rng: random.Random, num_points: int
) -> None:
    for number in range(max(num_points, len(TOOLS)) if num_points > 5 else num_points):
        kind = rng.choice(sorted(TOOLS)) if num_points <= 5 else sorted(TOOLS)[number % len(TOOLS)]
        script, told = TOOLS[kind]
        install_tool(machine, script)
        begun = time.monotonic()
        found = gpu_finding(machine, rng.choice(("auto", "cpu", "gpu", "cuda")))
        assert time.monotonic() - begun < LIMIT_S + SLACK_S, kind
        assert found.state == PROBLEM, (kind, found)
        assert told in found.text, (kind, found)
        assert "reboot" in found.hints[0]


def test_a_driver_that_was_late_is_seen_the_next_time(machine: Path) -> None:
    install_tool(machine, TOOLS["not loaded"][0])
    assert gpu_finding(machine, "auto").state == PROBLEM
    install_tool(machine, "echo 'NVIDIA GeForce RTX 4090, 24564, 570.86'")
    found = gpu_finding(machine, "auto")
    assert found.state != PROBLEM
    assert "driver 570.86" in found.text


@runs
def test_less_memory_each_time_is_waited_for_once_and_then_said(
    rng: random.Random, num_points: int
) -> None:
    clock, free = FakeClock(), 24 * GB

    async def life(before: int, taken: int, back: int) -> str:
        answers = [before, before - taken]

        async def probe() -> int | None:
            return answers.pop(0) if answers else before - taken + back

        watch = DeviceMemoryWatch(clock, "cuda", probe)
        await watch.before_load()
        await watch.loaded()
        return await clock.drive(watch.returned("tiny"), step_s=1.0)

    for _ in range(num_points):
        taken = rng.randrange(GB // 2, 12 * GB)
        back = int(taken * rng.uniform(0, 1))
        begun = clock.monotonic()
        said = asyncio.run(life(free, taken, back))
        assert clock.monotonic() - begun <= RETURN_LIMIT_S + 10
        assert bool(said) == (back < int(0.8 * taken)), (taken, back, said)
        assert not said or "of GPU memory that the engine of tiny held" in said
        free = max(13 * GB, free - taken + back)


@runs
def test_a_probe_that_changes_its_mind_keeps_nobody_waiting(
    rng: random.Random, num_points: int
) -> None:
    clock = FakeClock()

    async def life() -> str:
        async def probe() -> int | None:
            return rng.choice((None, 0, rng.randrange(24 * GB), -5))

        watch = DeviceMemoryWatch(clock, "auto", probe)
        await watch.before_load()
        await watch.loaded()
        return await clock.drive(watch.returned("tiny"), step_s=1.0)

    for _ in range(num_points):
        begun = clock.monotonic()
        asyncio.run(life())
        assert clock.monotonic() - begun <= RETURN_LIMIT_S + 10
