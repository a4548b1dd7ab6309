"""Damaged blocks come back from just the bytes they were made of, in every layout."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ftengine.convert import repair
from ftengine.convert.local import LocalLink, convert_folder, local_job
from ftengine.convert.protocol import Derive, Have
from ftengine.convert.repair import Stretch, parse_damage, repair_job
from ftengine.errors import LoadError, RequestError
from ftengine.loader import ftw, ftw_index
from ftman import faults
from tests.fakes import tiny_models as tiny

BLOCK_BYTES = 8192


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny models are one block of 16 MiB; a small one cuts through rows and padding."""
    for module in (repair, ftw, ftw_index):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK_BYTES)


class AskedLink(LocalLink):
    """Hands out what is asked for and nothing else."""

    def __init__(self, paths: Mapping[str, Path]):
        super().__init__({})
        self._paths = paths
        self.asked_bytes = 0

    def send(self, message: Mapping[str, Any]) -> None:
        if "need" in message:
            need = message["need"]
            self.asked_bytes += need["end"] - need["start"]
            path = self._paths[need["file"]]
            self._queue.append(Have(need["file"], need["start"], need["end"], path, need["start"]))


def contents(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def spoil(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x55
    path.write_bytes(data)


def source_of(kind: str, tmp_path: Path) -> tuple[Path, Derive | None]:
    if kind == "upcycled":
        return tiny.build_tiny("llama", tmp_path / "src", dtype="bfloat16"), Derive("upcycle", 4, 2)
    if kind == "gguf":
        path = tmp_path / "t.gguf"
        tiny.build_tiny_gguf("qwen3moe", path, types={"experts": "q4_1"})
        return path, None
    if kind == "nvfp4":
        path, types = tmp_path / "t.gguf", {"matrix": "nvfp4", "embed": "f32"}
        tiny.build_tiny_gguf("llama", path, types=types, sizes=tiny.sizes_of("llama", inter=128))
        return path, None
    return tiny.build_tiny(kind, tmp_path / "src", dtype="bfloat16", num_shards=2), None


@pytest.mark.parametrize("kind", ["mixtral", "qwen3", "gguf", "nvfp4", "upcycled"])
def test_any_spoilt_block_is_as_it_was(kind: str, tmp_path: Path) -> None:
    source, derive = source_of(kind, tmp_path)
    target = tmp_path / "ftw"
    convert_folder(source, target, derive=derive)
    before = contents(target)
    shard = target / "weights-00000.ftw"
    size = shard.stat().st_size
    offsets = range(0, size, max(1, size // 7))
    for offset in offsets:
        spoil(shard, offset)
    damage = [
        Stretch(shard.name, at := offset // BLOCK_BYTES * BLOCK_BYTES, at + BLOCK_BYTES)
        for offset in offsets
    ]
    job, paths = local_job(source, target, derive=derive)
    answer = repair_job(job, damage, LocalLink(paths))
    assert answer["left"] == []
    assert answer["blocks"] == len({item.start for item in damage})
    assert contents(target) == before


def test_only_the_needed_source_bytes_are_asked_for(tmp_path: Path) -> None:
    sizes = tiny.sizes_of("qwen3", hidden=256, vocab=2048)
    source = tiny.build_tiny("qwen3", tmp_path / "src", dtype="bfloat16", sizes=sizes)
    target = tmp_path / "ftw"
    convert_folder(source, target)
    before = contents(target)
    shard = target / "weights-00000.ftw"
    last = shard.stat().st_size // BLOCK_BYTES - 1
    spoil(shard, last * BLOCK_BYTES)
    job, paths = local_job(source, target)
    link = AskedLink(paths)
    start = last * BLOCK_BYTES
    answer = repair_job(job, [Stretch(shard.name, start, start + BLOCK_BYTES)], link)
    assert answer["left"] == []
    assert contents(target) == before
    headers = 1 << 16
    small = sum(p.stat().st_size for p in paths.values() if p.suffix != ".safetensors")
    assert link.asked_bytes < small + headers + (1 << 20)


def test_lost_cut_and_lengthened_files_come_back(tmp_path: Path) -> None:
    source, target = tiny.build_tiny("mixtral", tmp_path / "src"), tmp_path / "ftw"
    convert_folder(source, target)
    before = contents(target)
    shard = target / "weights-00000.ftw"
    size = shard.stat().st_size
    job, paths = local_job(source, target)
    whole = [Stretch(shard.name, 0, size)]
    shard.unlink()
    assert repair_job(job, whole, LocalLink(paths))["left"] == []
    assert contents(target) == before
    shard.write_bytes(shard.read_bytes()[: size // 2])
    assert repair_job(job, whole, LocalLink(paths))["left"] == []
    shard.write_bytes(shard.read_bytes() + b"more")
    assert repair_job(job, [Stretch(shard.name, size, size)], LocalLink(paths))["left"] == []
    (target / "config.json").write_bytes(b"{}")
    (target / "source.json").unlink()
    small = [Stretch("config.json", 0, 2), Stretch("source.json", 0, 9)]
    assert repair_job(job, small, LocalLink(paths))["left"] == []
    assert contents(target) == before


def test_other_bytes_at_the_source_change_nothing(tmp_path: Path) -> None:
    source, target = tiny.build_tiny("mixtral", tmp_path / "src", seed=1), tmp_path / "ftw"
    other = tiny.build_tiny("mixtral", tmp_path / "other", seed=2)
    convert_folder(source, target)
    shard = target / "weights-00000.ftw"
    spoil(shard, 4096)
    spoilt = contents(target)
    job, paths = local_job(other, target)
    answer = repair_job(job, [Stretch(shard.name, 0, BLOCK_BYTES)], LocalLink(paths))
    assert answer["left"] == [{"file": shard.name, "start": 0, "end": BLOCK_BYTES}]
    assert contents(target) == spoilt
    dense = tiny.build_tiny("llama", tmp_path / "dense")
    job, paths = local_job(dense, target)
    with pytest.raises(LoadError, match="same layout"):
        repair_job(job, [Stretch(shard.name, 0, 1)], LocalLink(paths))


@pytest.mark.parametrize("value", [None, [3], [{"file": "x", "start": -1, "end": 2}], [{}]])
def test_a_wrong_job_is_refused(value: Any) -> None:
    with pytest.raises(RequestError, match="damage"):
        parse_damage(value)


@pytest.mark.parametrize("victim", ["weights-00000.ftw", "config.json"])
def test_a_disk_that_is_full_mends_nothing_and_the_next_try_does(
    tmp_path: Path, victim: str
) -> None:
    source, target = tiny.build_tiny("mixtral", tmp_path / "src"), tmp_path / "ftw"
    convert_folder(source, target)
    before = contents(target)
    spoil(target / victim, 5)
    job, paths = local_job(source, target)
    faults.arm("files.write=error:ENOSPC")
    with pytest.raises(OSError, match="No space left"):
        repair_job(job, [Stretch(victim, 0, 9)], LocalLink(paths))
    faults.arm("")
    assert repair_job(job, [Stretch(victim, 0, 9)], LocalLink(paths))["left"] == []
    assert contents(target) == before
