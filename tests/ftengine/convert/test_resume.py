"""A converter killed at any point resumes to the same model and never re-reads what was done."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
from pathlib import Path

import pytest

from ftengine.convert.convert import run_job
from ftengine.convert.local import convert_folder, local_job
from ftengine.errors import CapacityError
from ftengine.loader.ftw import FtwModel
from ftman import faults
from tests.fakes import tiny_models as tiny
from tests.fakes.windows import WindowFolder, WindowLink, job_line, start_converter, talk

POINTS = [
    "convert.after_tensor:30=kill",
    "convert.before_index=kill",
    "convert.before_rename=kill",
    "files.rename:5=kill",
    pytest.param("convert.after_tensor:1=kill", marks=pytest.mark.slow),
    pytest.param("convert.after_tensor:9=kill", marks=pytest.mark.slow),
    pytest.param("files.fsync:6=kill", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("plan", POINTS)
def test_a_kill_at_each_fault_point_resumes_to_the_same_id(plan: str, tmp_path: Path) -> None:
    """Gate and up lie in different files here, so halves wait in the staging file."""
    source = tiny.build_tiny("mixtral", tmp_path / "src", num_shards=2)
    expected = convert_folder(source, tmp_path / "expected")
    job, paths = local_job(source, tmp_path / "ftw")
    line = job_line("safetensors", paths, job.target)
    windows = WindowFolder(paths, tmp_path / "windows", 20_000)
    messages = talk(start_converter(faults=plan), line, windows)
    assert not any("result" in message for message in messages)
    messages = talk(start_converter(), line, windows)
    assert messages[-1]["result"] == expected
    FtwModel.open(job.target, check="checksums").close()
    assert windows.alive == {}


def test_many_kills_in_a_row_still_end_with_the_same_model(tmp_path: Path) -> None:
    source = tiny.build_tiny("mixtral", tmp_path / "src", num_shards=3)
    expected = convert_folder(source, tmp_path / "expected")
    job, paths = local_job(source, tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", 9_000)
    rng = random.Random(7)
    for _ in range(60):
        limit = rng.randrange(1, 400)
        hits = 0

        def stop_there(point: str, limit: int = limit) -> None:
            nonlocal hits
            hits += 1
            if hits == limit:
                raise KeyboardInterrupt

        faults.listen(stop_there)
        try:
            result = run_job(job, WindowLink(windows))
            break
        except KeyboardInterrupt:
            continue
        finally:
            faults.listen(None)
    assert result == expected


def test_every_failing_disk_call_is_a_clean_error_and_can_be_resumed(tmp_path: Path) -> None:
    source = tiny.build_tiny_gguf("llama", tmp_path / "t.gguf", types={"matrix": "q4_1"})
    expected = convert_folder(source, tmp_path / "expected")
    job, paths = local_job(source, tmp_path / "ftw")
    failed = 0
    for number in range(1, 200, 7):
        kind = errno.ENOSPC if number % 3 else errno.EIO

        def fail_there(point: str, state: list[int] = [number], kind: int = kind) -> None:  # noqa: B006
            state[0] -= 1
            if state[0] == 0:
                raise OSError(kind, os.strerror(kind), point)

        windows = WindowFolder(paths, tmp_path / f"windows-{number}", 20_000)
        faults.listen(fail_there)
        try:
            run_job(job, WindowLink(windows))
        except (OSError, CapacityError):
            failed += 1
        finally:
            faults.listen(None)
    windows = WindowFolder(paths, tmp_path / "windows", 20_000)
    assert failed > 3
    assert run_job(job, WindowLink(windows)) == expected


def test_another_job_in_the_same_folder_starts_afresh(tmp_path: Path) -> None:
    source = tiny.build_tiny("llama", tmp_path / "src")
    other = tiny.build_tiny("llama", tmp_path / "src2", seed=1, num_shards=2)
    convert_folder(source, tmp_path / "ftw")
    assert convert_folder(other, tmp_path / "ftw") == convert_folder(other, tmp_path / "x")


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    source = tiny.build_tiny("llama", tmp_path / "src")
    target = tmp_path / "mine"
    target.mkdir()
    (target / "photos").write_text("precious")
    with pytest.raises(Exception, match="neither empty nor a conversion"):
        convert_folder(source, target)
    assert (target / "photos").read_text() == "precious"


@pytest.mark.parametrize("how", ["sigterm", "eof", "cancel"])
def test_stopping_is_clean_and_keeps_the_journal(how: str, tmp_path: Path) -> None:
    source = tiny.build_tiny_gguf("llama", tmp_path / "t.gguf")
    job, paths = local_job(source, tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", 1 << 22)
    process = start_converter()
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(job_line("gguf", paths, job.target))
        process.stdin.flush()
        need = json.loads(process.stdout.readline())
        assert set(need) == {"need"}
        if how == "sigterm":
            process.send_signal(signal.SIGTERM)
        elif how == "eof":
            process.stdin.close()
        else:
            process.stdin.write(b'{"cancel": true}\n')
            process.stdin.flush()
        rest = [json.loads(line) for line in process.stdout]
        assert process.wait(10) == 1
    assert rest[-1]["error"]["code"] == "cancelled"
    assert (job.target / "journal.ndjson").is_file()
    messages = talk(start_converter(), job_line("gguf", paths, job.target), windows)
    assert "result" in messages[-1]


def test_a_full_disk_says_what_is_needed_and_what_there_is(tmp_path: Path) -> None:
    source = tiny.build_tiny("llama", tmp_path / "src")
    job, paths = local_job(source, tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", 1 << 22)
    line = job_line("safetensors", paths, job.target)
    messages = talk(start_converter(limit_bytes=200_000), line, windows)
    error = messages[-1]["error"]
    assert error["code"] == "disk_full"
    assert "more bytes on disk" in error["message"]
    assert "free" in error["message"]
    assert error["hint"]
