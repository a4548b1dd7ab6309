"""The FTW reader refuses anything but an exact folder, and reads exact bytes."""

from __future__ import annotations

import copy
import json
import mmap
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from ftengine.convert.local import convert_folder
from ftengine.errors import FormatError
from ftengine.loader import ftw as reader
from ftengine.loader.block_check import BlockCheck
from ftengine.loader.ftw import FtwModel, parse_index, verify_blocks
from ftengine.loader.ftw_index import PLAIN_FORMATS
from ftengine.loader.stored import SCALE_FORMATS, row_format
from ftengine.quant import FORMATS
from tests.fakes import tiny_models as tiny
from tests.fakes.quantised import build_quantised


@pytest.fixture(scope="module")
def ftw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ftw")
    tiny.build_tiny("mixtral", folder / "src")
    convert_folder(folder / "src", folder / "ftw")
    return folder / "ftw"


@pytest.fixture
def own(ftw: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    target = tmp_path / "own"
    target.mkdir()
    for item in ftw.iterdir():
        (target / item.name).write_bytes(item.read_bytes())
    return target


@pytest.fixture(params=["cached", "past the cache"])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks so small that the tiny model's entries span several; read either way."""
    monkeypatch.setattr(reader, "BLOCK_BYTES", 8192)
    if request.param != "cached":
        monkeypatch.setattr(reader, "_CACHED_ONLY", 0)
    return 8192


def checked(folder: Path, block_bytes: int) -> FtwModel:
    """The folder with checksums of its present bytes, of blocks of that size."""
    plain = FtwModel.open(folder)
    plain.close()
    data = (folder / "weights-00000.ftw").read_bytes()
    starts = range(0, len(data), block_bytes)
    sums = tuple(xxhash.xxh3_128_hexdigest(data[at : at + block_bytes]) for at in starts)
    shards = (replace(plain.index.shards[0], blocks=sums),)
    blocks = BlockCheck(str(folder), shards, block_bytes)
    return FtwModel(folder, replace(plain.index, shards=shards), plain.config, blocks)


def read_all(model: FtwModel) -> None:
    data = (model.path / "weights-00000.ftw").read_bytes()
    for entry in (*model.index.tensors, *model.index.banks):
        page = mmap.mmap(-1, -(-entry.bytes // 4096) * 4096)
        model.read(entry, memoryview(page))
        assert page[: entry.bytes] == data[entry.offset : entry.offset + entry.bytes], entry.name
    model.check_rest()


def test_entries_of_several_blocks_are_read_exactly(ftw: Path, small_blocks: int) -> None:
    with checked(ftw, small_blocks) as model:
        assert max(entry.bytes for entry in model.index.banks) > 4 * small_blocks
        read_all(model)


@pytest.mark.parametrize(("mapped", "step"), [(False, 5), (True, 20)])
def test_a_flipped_bit_in_any_block_is_named(
    own: Path, small_blocks: int, mapped: bool, step: int
) -> None:
    shard = own / "weights-00000.ftw"
    whole = shard.read_bytes()
    for block in range(0, len(whole) // small_blocks, step):
        with checked(own, small_blocks) as model:
            damaged = bytearray(whole)
            damaged[block * small_blocks + 77] ^= 1
            shard.write_bytes(damaged)
            if mapped:
                model.map_cached()
            with pytest.raises(FormatError, match=rf"ftw is damaged \(block {block} "):
                model.check_rest() if mapped else read_all(model)
        shard.write_bytes(whole)


def test_a_mapped_shard_is_read_exactly(own: Path, small_blocks: int) -> None:
    with checked(own, small_blocks) as model:
        model.map_cached()
        read_all(model)


def test_checks_of_a_mapped_shard_end_when_the_model_is_closed(own: Path) -> None:
    model = checked(own, 8192)
    model.map_cached()
    model.close()
    with pytest.raises(FormatError, match="was closed"):
        model._read_span(0, 0, 1)


def test_reads_are_exact_aligned_or_not(ftw: Path) -> None:
    data = (ftw / "weights-00000.ftw").read_bytes()
    with FtwModel.open(ftw, check="checksums") as model:
        assert model.total_bytes == len(data)
        for entry in (*model.index.tensors, *model.index.banks):
            expected = data[entry.offset : entry.offset + entry.bytes]
            padded = -(-entry.bytes // 4096) * 4096
            page = mmap.mmap(-1, padded)
            model.read(entry, memoryview(page))
            assert page[: entry.bytes] == expected, entry.name
            plain = bytearray(entry.bytes + 7)
            model.read(entry, memoryview(plain)[3 : 3 + entry.bytes])
            assert plain[3 : 3 + entry.bytes] == expected, entry.name
            assert plain[:3] + plain[-4:] == bytes(7)


def test_a_short_buffer_is_refused(ftw: Path) -> None:
    with FtwModel.open(ftw) as model:
        entry = model.index.tensors[0]
        with pytest.raises(ValueError, match="needs"):
            model.read(entry, memoryview(bytearray(entry.bytes - 1)))


def test_sizes_are_always_checked(own: Path) -> None:
    shard = own / "weights-00000.ftw"
    data = shard.read_bytes()
    for wrong in (data[:-1], data + b"\0"):
        shard.write_bytes(wrong)
        with pytest.raises(FormatError, match=r"weights-00000\.ftw"):
            FtwModel.open(own)
    shard.unlink()
    with pytest.raises(FormatError, match=r"weights-00000\.ftw is missing"):
        FtwModel.open(own)


def test_a_flipped_bit_is_found_and_named(own: Path) -> None:
    shard = own / "weights-00000.ftw"
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    with FtwModel.open(own) as model:
        seen: list[int] = []
        assert verify_blocks(model, seen.append) == [("weights-00000.ftw", 0)]
        assert sum(seen) > len(data)
    with pytest.raises(FormatError, match=r"weights-00000\.ftw is damaged \(block 0"):
        FtwModel.open(own, check="checksums")


def test_a_changed_small_file_is_found(own: Path) -> None:
    path = own / "tokenizer.json"
    path.write_bytes(path.read_bytes().replace(b"the", b"eth", 1))
    with FtwModel.open(own) as model:
        assert verify_blocks(model) == [("tokenizer.json", -1)]


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(index: dict[str, Any]) -> None:
        *keys, last = path.split(".")
        place: Any = index
        for key in keys:
            place = place[int(key)] if key.isdigit() else place[key]
        place[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set("version", 2), "version 2"),
        (_set("format", "gguf"), "gguf"),
        (_set("tensors.1.offset", 0), "overlaps"),
        (_set("tensors.1.offset", 4095), "misaligned"),
        (_set("tensors.1.offset", 1 << 40), "outside"),
        (_set("tensors.0.bytes", -1), "bytes"),
        (_set("tensors.0.bytes", True), "bytes"),
        (_set("tensors.0.shard", 9), "shard 9"),
        (_set("tensors.0.name", "norm"), "twice"),
        (_set("tensors.0.shape", []), "shape"),
        (_set("shards.0.blocks", []), "blocks"),
        (_set("shards.0.file", "../weights-00000.ftw"), "plain file name"),
        (_set("files.0.name", "/etc/passwd"), "plain file name"),
        (_set("files", {}), "files"),
        (_set("banks.0.row_bytes", 4097), "too long"),
        (_set("banks.0.num_experts", 1 << 50), "num_experts|outside"),
        (_set("banks.0.parts.1.offset", 64), "overlaps"),
        (_set("banks.0.parts.1.bytes", 1 << 40), "too long"),
        (_set("banks.0.row_bytes", (1 << 20) + 64), "row_bytes|outside"),
        (_set("banks.0.parts", []), "row_bytes"),
    ],
)
def test_wrong_entries_are_refused(ftw: Path, change: Any, reason: str) -> None:
    index = json.loads((ftw / "index.json").read_text())
    change(index)
    with pytest.raises(FormatError, match=reason) as caught:
        parse_index(json.dumps(index).encode(), "folder/index.json")
    assert "folder/index.json" in caught.value.message or "index" in caught.value.message


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b'{"format":"ftw"}'],
)
def test_hostile_json_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_index(data, "index.json")


@pytest.mark.parametrize(
    "count", [pytest.param(300, id="short"), pytest.param(2000, marks=pytest.mark.slow, id="long")]
)
def test_mutated_indexes_are_refused_or_read(ftw: Path, count: int) -> None:
    original = json.loads((ftw / "index.json").read_text())
    rng = random.Random(3)
    junk = [None, -1, 0, 1, 1 << 70, 4096.5, "", "x", [], {}, [[]], True, "norm"]
    refused = 0
    for _ in range(count):
        index = copy.deepcopy(original)
        place: Any = index
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = rng.choice(keys)
            inner = place[key]
            if not isinstance(inner, dict | list) or not inner or rng.random() < 0.1:
                break
            place = inner
        place[key] = rng.choice(junk)
        try:
            parse_index(json.dumps(index).encode(), "index.json")
        except FormatError:
            refused += 1
    assert refused > count // 2


def test_known_formats_are_those_that_can_be_read() -> None:
    built = {fmt.name for fmt in FORMATS}
    assert built == {*PLAIN_FORMATS, *map(row_format, SCALE_FORMATS)}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The index of a model with fp8 attention and nvfp4 experts."""
    folder = tmp_path_factory.mktemp("quantised")
    build_quantised("llama", folder, "mixed_ct")
    convert_folder(folder / "q", folder / "ftw")
    value: dict[str, Any] = json.loads((folder / "ftw" / "index.json").read_text())
    return value


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("layers.0.attn.q", {"format": "fp9"}, "layers.0.attn.q has format 'fp9'.*does not know"),
        ("layers.0.attn.q", {"scales": "layers.9.x"}, "layers.0.attn.q .*wrong scales"),
        ("layers.0.attn.q", {"scales": "norm.scales"}, "wrong scales"),
        ("layers.0.attn.q", {"format": "mxfp4"}, "layers.0.attn.q .*wrong scales"),
        ("layers.0.attn.q", {"factor": "norm"}, "wrong factor"),
        ("layers.0.mlp.up", {"factor": "layers.0.attn.q"}, "wrong factor"),
        ("layers.0.mlp.up", {"format": "fp8_block"}, "wrong"),
        ("norm", {"scales": "layers.0.attn.q.scales"}, "norm .*wrong scales"),
    ],
)
def test_unknown_formats_and_wrong_scales_are_refused(
    quantised: dict[str, Any], name: str, change: dict[str, str], reason: str
) -> None:
    index = copy.deepcopy(quantised)
    parse_index(json.dumps(index).encode(), "folder/index.json")
    next(item for item in index["tensors"] if item["name"] == name).update(change)
    with pytest.raises(FormatError, match=reason) as caught:
        parse_index(json.dumps(index).encode(), "folder/index.json")
    assert "folder/index.json" in caught.value.message


def test_a_scaled_tensor_without_its_scales_is_refused(quantised: dict[str, Any]) -> None:
    for key in ("scales", "factor"):
        index = copy.deepcopy(quantised)
        del next(item for item in index["tensors"] if key in item)[key]
        with pytest.raises(FormatError, match=f"wrong {key}|a wrong {key}"):
            parse_index(json.dumps(index).encode(), "index.json")


def test_an_unknown_format_of_a_bank_is_refused(ftw: Path) -> None:
    index = json.loads((ftw / "index.json").read_text())
    index["banks"][1]["parts"][0]["format"] = "e8m0"
    with pytest.raises(FormatError, match="gate_up has format 'e8m0'"):
        parse_index(json.dumps(index).encode(), "index.json")
