"""Windows: any window size gives the same model, with little source data kept at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftengine.convert import window
from ftengine.convert.convert import run_job
from ftengine.convert.local import convert_folder, local_job
from ftengine.convert.protocol import Have
from ftengine.convert.window import Windows
from ftengine.convert.writer import FtwWriter
from ftengine.errors import LoadError, RequestError
from ftengine.loader import gguf, safetensors_header
from tests.fakes import tiny_models as tiny
from tests.fakes.windows import WindowFolder, WindowLink


@pytest.fixture(autouse=True)
def _small_header_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny files are not to be swallowed whole by the first header read."""
    monkeypatch.setattr(window, "ASK_BYTES", 1 << 13)
    monkeypatch.setattr(gguf, "FIRST_READ_BYTES", 1 << 14)
    monkeypatch.setattr(safetensors_header, "FIRST_READ_BYTES", 1 << 12)


@pytest.mark.parametrize("window_bytes", [7001, 40_000, 1 << 30])
@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_every_window_size_gives_the_same_id(kind: str, window_bytes: int, tmp_path: Path) -> None:
    if kind == "gguf":
        source = tiny.build_tiny_gguf("qwen3moe", tmp_path / "t.gguf", types={"experts": "q4_1"})
    else:
        source = tiny.build_tiny("qwen3_moe", tmp_path / "src", num_shards=3)
    whole = convert_folder(source, tmp_path / "whole")
    job, paths = local_job(source, tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", window_bytes)
    link = WindowLink(windows)
    result = run_job(job, link)
    assert result == whole
    assert windows.alive == {}
    for item in job.files:
        assert windows.done[item.name] == set(range(item.bytes)), item.name
    assert windows.served_bytes <= sum(item.bytes for item in job.files)


def test_a_gate_waits_for_its_up_in_a_later_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny.build_tiny_gguf("qwen3moe", tmp_path / "t.gguf")
    job, paths = local_job(source, tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", 7001)
    staged = []
    stage = FtwWriter.stage
    monkeypatch.setattr(FtwWriter, "stage", lambda *a: (staged.append(a[1].part), stage(*a)))
    run_job(job, WindowLink(windows))
    biggest_piece = 320 * 64 * 4
    assert windows.peak_bytes <= biggest_piece + (1 << 14) + 2 * 7001
    assert set(staged) == {"gate"} or set(staged) == {"up"}
    assert not (tmp_path / "ftw" / "work").exists()


def test_what_is_on_its_way_is_not_asked_twice(tmp_path: Path) -> None:
    source = tiny.build_tiny_gguf("llama", tmp_path / "t.gguf")
    job, paths = local_job(source, tmp_path / "ftw")
    link = WindowLink(WindowFolder(paths, tmp_path / "windows", 999))
    run_job(job, link)
    asked: set[int] = set()
    for need in (message["need"] for message in link.messages if "need" in message):
        wanted = set(range(need["start"], need["end"]))
        assert not asked & wanted
        asked |= wanted


def test_progress_ends_at_its_total(tmp_path: Path) -> None:
    source = tiny.build_tiny("llama", tmp_path / "src")
    messages: list[dict] = []
    convert_folder(source, tmp_path / "ftw", on_message=messages.append)
    last = {m["progress"]["phase"]: m["progress"] for m in messages if "progress" in m}
    assert list(last) == ["converting", "checking"]
    assert all(item["completed"] == item["total"] for item in last.values())


def test_a_window_shorter_than_announced_is_an_error(tmp_path: Path) -> None:
    source = tiny.build_tiny("llama", tmp_path / "src")
    job, paths = local_job(source, tmp_path / "ftw")

    class Short(WindowLink):
        def receive(self, *, block: bool) -> Have | None:
            have = super().receive(block=block)
            if have is not None and have.file == "model.safetensors":
                have.path.write_bytes(have.path.read_bytes()[:-10])
            return have

    link = Short(WindowFolder(paths, tmp_path / "windows", 1 << 30))
    with pytest.raises(LoadError, match=r"window of model\.safetensors ends before"):
        run_job(job, link)


def test_windows_outside_the_job_are_refused(tmp_path: Path) -> None:
    source = tiny.build_tiny("llama", tmp_path / "src")
    job, paths = local_job(source, tmp_path / "ftw")
    path = paths["config.json"]
    for have in (Have("other", 0, 1, path), Have("config.json", 5, 1 << 40, path)):

        class Wrong(WindowLink):
            def receive(self, *, block: bool, have: Have = have) -> Have | None:
                return have

        windows = Windows(Wrong(WindowFolder(paths, tmp_path / "w", 10)), job.files)
        with pytest.raises(RequestError):
            windows.fetch(0, 0, 10)
