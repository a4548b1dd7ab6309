"""`ft fit`: the engine's forecast asked through a child process, and this machine as a profile."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from ftman.errors import FtmanError, UsageError
from ftman.forecast import ask, forecast_of, memory_here, this_machine

PROFILE = {
    "threads": 2,
    "target": "avx512",
    "read_bytes_per_s": 20e9,
    "expert_bytes_per_s": {"bf16": 18e9, "q4_1": 9e9},
    "disk_bytes_per_s": 0,
}


def program(tmp_path: Path, text: str) -> tuple[str, ...]:
    """A stand-in for the engine's forecast that also writes down how it was called."""
    script = tmp_path / "forecast.py"
    script.write_text(
        f"import pathlib, sys\npathlib.Path({str(tmp_path / 'args')!r}).write_text("
        f"'\\n'.join(sys.argv[1:]))\n{text}\n"
    )
    return (sys.executable, str(script))


def run(command: tuple[str, ...], machine: Any = "rtx-4060-laptop") -> Any:
    return asyncio.run(ask(Path("folder"), machine, 4096, command))


def test_the_answer_of_the_engine_is_passed_on(tmp_path: Path) -> None:
    command = program(tmp_path, 'print(\'{"forecast": {"fits": true}}\')')
    assert run(command) == {"fits": True}
    expected = "--ftw\nfolder\n--context\n4096\n--device\nrtx-4060-laptop"
    assert (tmp_path / "args").read_text() == expected


def test_a_refusal_of_the_engine_is_a_wrong_request(tmp_path: Path) -> None:
    command = program(tmp_path, 'print(\'{"error": {"message": "no such device"}}\'); sys.exit(1)')
    with pytest.raises(UsageError, match="no such device"):
        run(command)


def test_silence_names_the_status(tmp_path: Path) -> None:
    with pytest.raises(FtmanError, match="status 3"):
        run(program(tmp_path, "sys.exit(3)"))


def test_the_real_program_knows_this_machine(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "ftengine.forecast")
    with pytest.raises(UsageError, match=r"index\.json cannot be read"):
        asyncio.run(ask(tmp_path, this_machine(PROFILE, 8 << 30), 4096, command))


def test_this_machine_is_as_fast_as_its_slowest_measured_format() -> None:
    values = this_machine(PROFILE, 8 << 30)
    assert values["host_bytes_per_s"] == 9e9
    assert (values["vram_bytes"], values["ram_bytes"]) == (0, 8 << 30)
    assert "disk_bytes_per_s" not in values


@pytest.mark.parametrize(
    ("device", "context", "named"),
    [
        ("/etc/x.toml", None, "not the name of a profile"),
        ("--list", None, "not the name of a profile"),
        ("", None, "ft calibrate"),
        ("rtx-4060-laptop", 0, "1 or more"),
    ],
)
def test_a_wrong_question_is_refused_before_a_child_runs(
    device: str, context: int | None, named: str
) -> None:
    with pytest.raises(UsageError, match=named):
        asyncio.run(forecast_of(Path("folder"), None, device, context))


PLAN = {
    "details": {"context_length": 2048},
    "num_layers": 4,
    "dense_bytes": 1 << 20,
    "kv_bytes_per_token": 64,
    "disk_bytes": 2 << 20,
}


def test_a_plan_is_judged_before_there_is_a_folder() -> None:
    answer = asyncio.run(memory_here(PLAN, PROFILE))
    assert answer["fits"]
    assert answer["context_tokens"] == 2048
    assert answer["tokens_per_s"] > 0
    assert answer["machine_ram_bytes"] > 0


def test_no_time_is_told_of_a_machine_that_was_not_measured() -> None:
    answer = asyncio.run(memory_here(PLAN, None))
    assert answer["ram_bytes"] >= 1 << 20
    assert not {"tokens_per_s", "ttft_s", "strategy"} & answer.keys()
