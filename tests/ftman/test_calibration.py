"""Once per machine, by a child; a failure costs a log line, never a load."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from ftman import faults
from ftman.calibration import Calibration, Step
from ftman.config import EngineSettings, Paths
from ftman.errors import FtmanError
from tests.fakes.processes import children

GOOD = """
import json, sys
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
print(json.dumps({{"progress": {{"phase": "memory", "completed": 0, "total": 2}}}}))
print("noise")
print(json.dumps({{"profile": {profile}}}))
"""
ENDLESS = GOOD.partition('print(json.dumps({{"profile')[0] + (
    "import time; sys.stdout.flush(); time.sleep(60)\n"
)
PROFILE = {"threads": 2, "target": "any", "read_bytes_per_s": 5.0, "expert_bytes_per_s": {}}


def calibration(tmp_path: Path, program: str, **settings: object) -> Calibration:
    """A Calibration whose child is a small script."""
    script = tmp_path / "child.py"
    script.write_text(program.format(log=str(tmp_path / "runs"), profile=PROFILE))
    engine = EngineSettings(**settings)  # type: ignore[arg-type]
    return Calibration(Paths(tmp_path, tmp_path), engine, (sys.executable, str(script)))


def ensure(found: Calibration, ftw: Path | None = None) -> list[Step]:
    """Every step of one `ensure`."""

    async def collect() -> list[Step]:
        return [step async for step in found.ensure(ftw)]

    return asyncio.run(collect())


def runs(tmp_path: Path) -> list[str]:
    log = tmp_path / "runs"
    return log.read_text().splitlines() if log.exists() else []


def test_measures_once_however_many_ask(tmp_path: Path) -> None:
    found = calibration(tmp_path, GOOD)
    steps: list[Step] = []

    async def one() -> None:
        steps.extend([step async for step in found.ensure(None)])

    async def ask() -> None:
        await asyncio.gather(*(one() for _ in range(3)))

    asyncio.run(ask())
    assert len(runs(tmp_path)) == 1
    assert found.cached() == PROFILE
    assert [step.phase for step in steps] == ["memory", "done"]


def test_other_settings_are_another_machine(tmp_path: Path) -> None:
    ensure(calibration(tmp_path, GOOD))
    other = calibration(tmp_path, GOOD, threads=1, cpu_target="scalar")
    assert other.cached() is None
    ensure(other, tmp_path / "model")
    assert runs(tmp_path)[-1] == f"--threads 1 --cpu-target scalar --ftw {tmp_path / 'model'}"
    assert calibration(tmp_path, GOOD).cached() is not None


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(3)",
        'print(\'{{"error": {{"code": "x", "message": "no kernels", "hint": ""}}}}\')',
    ],
)
def test_failure_is_logged_on_the_way_to_a_load_and_raised_when_asked_for(
    tmp_path: Path, program: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = calibration(tmp_path, program)
    ensure(broken)
    assert "calibration failed" in caplog.text
    assert broken.cached() is None

    async def ask() -> None:
        async for _ in broken.run():
            pass

    with pytest.raises(FtmanError):
        asyncio.run(ask())


def test_damaged_cache_is_measured_anew(tmp_path: Path) -> None:
    found = calibration(tmp_path, GOOD)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "calibration.json").write_text("{not json")
    assert found.cached() is None
    ensure(found)
    assert found.cached() is not None


@pytest.mark.parametrize(
    "damage",
    [{"threads": None}, {"read_bytes_per_s": "fast"}, {"expert_bytes_per_s": {"q4_k": None}}],
    ids=str,
)
def test_a_profile_that_lacks_something_is_measured_anew(
    tmp_path: Path, damage: dict[str, object]
) -> None:
    found = calibration(tmp_path, GOOD)
    entry = {key: value for key, value in (PROFILE | damage).items() if value is not None}
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "calibration.json").write_text(json.dumps({found.key(): entry}))
    assert found.cached() is None
    ensure(found)
    assert found.cached() == PROFILE


def test_a_full_disk_costs_no_load_and_no_second_measurement(tmp_path: Path) -> None:
    found = calibration(tmp_path, GOOD)
    faults.arm("files.write=error:ENOSPC")
    assert [step.phase for step in ensure(found)][:1] == ["memory"]
    assert found.cached() == PROFILE
    assert ensure(found) == []
    with pytest.raises(OSError, match="No space left"):
        asyncio.run(anext_all(found.run()))
    faults.arm("")
    asyncio.run(anext_all(found.run()))
    assert len(runs(tmp_path)) == 3
    assert calibration(tmp_path, GOOD).cached() == PROFILE


async def anext_all(steps: AsyncGenerator[Step, None]) -> None:
    async for _ in steps:
        pass


@pytest.mark.parametrize("how", ["ensure", "run"])
def test_who_leaves_leaves_no_child_behind(tmp_path: Path, how: str) -> None:
    found = calibration(tmp_path, ENDLESS)

    async def main() -> None:
        steps = getattr(found, how)(None)
        assert (await anext(steps)).phase == "memory"
        await steps.aclose()
        assert children() == before
        assert found.current is None

    before = children()
    asyncio.run(main())
