"""Calibration measures the real kernels and states rates that hang together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ftengine.calibrate import __main__ as program
from ftengine.calibrate import cpu
from ftengine.calibrate.disk import measure_disk
from ftengine.kernels.native import NativeKernels
from ftengine.quant import format_named
from ftman.clock import SYSTEM


class SteppingClock:
    """Each look at the clock is one second later, so that a rate is bytes per second exactly."""

    def __init__(self) -> None:
        self.now = 0.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("not used here")


@pytest.fixture(autouse=True)
def small_bank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "BANK_BYTES", 96 << 20)
    monkeypatch.setattr(cpu, "ROUNDS", 1)


@pytest.mark.parametrize("fmt", cpu.FORMATS)
def test_expert_rate_counts_whole_rows_of_the_format(fmt: str) -> None:
    kernels = NativeKernels.load(num_threads=2)
    layout = cpu.expert_layout(fmt, fmt, cpu.HIDDEN, cpu.INTERMEDIATE)
    rate = cpu.measure_experts(kernels, fmt, SteppingClock())
    assert rate % layout.row_bytes == 0
    assert rate / layout.row_bytes % cpu.EXPERTS_PER_TOKEN == 0
    assert rate > 0


@pytest.mark.parametrize("fmt", cpu.FORMATS)
def test_the_fill_pattern_is_a_number_in_every_format(fmt: str) -> None:
    """NaN or subnormal weights could take another time than real ones."""
    quant = format_named(fmt)
    row = np.full(quant.row_bytes(cpu.HIDDEN), cpu.FILL, dtype=np.uint8)
    values = np.abs(quant.dequantize(row))
    assert bool(np.isfinite(values).all())
    assert values.min() > np.finfo(np.float32).tiny


def test_profile_holds_every_format_and_no_disk_without_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    profile = program.calibrate(None, 2, "", SYSTEM)
    assert set(profile.expert_bytes_per_s) == set(cpu.FORMATS)
    assert profile.read_bytes_per_s > 0
    assert profile.disk_bytes_per_s == 0
    assert '"phase": "memory"' in capsys.readouterr().out


def test_disk_rate_comes_from_the_largest_shard(tmp_path: Path) -> None:
    (tmp_path / "weights-00000.ftw").write_bytes(b"\1" * 1000)
    (tmp_path / "weights-00001.ftw").write_bytes(b"\1" * 5000)
    assert measure_disk(tmp_path, SteppingClock()) == 5000
    assert measure_disk(tmp_path / "nowhere", SteppingClock()) == 0


def test_unknown_target_is_one_error_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--cpu-target", "cray"]) == 1
    out = capsys.readouterr().out
    assert '"error"' in out
    assert "cray" in out
