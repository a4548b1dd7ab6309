"""Damage at rest is seen: by size at once, by checksum on demand, with the place named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model
from ftman.catalog.verify import BLOCK_BYTES, read_index
from tests.ftman.catalog.samples import make_ftw, name_of, new_model


@pytest.fixture
def model(catalog: Catalog) -> Model:
    return catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths)))


def test_an_intact_model_verifies_and_every_byte_is_counted(catalog: Catalog, model: Model) -> None:
    counted = []
    assert catalog.verify(model, counted.append) == []
    index = (model.ftw_path / "index.json").stat().st_size
    assert sum(counted) == model.size_bytes - index


@pytest.mark.parametrize("name", ["weights-00001.ftw", "tokenizer.json", "source.json"])
def test_cut_and_removed_files_show_without_a_checksum(
    catalog: Catalog, model: Model, name: str
) -> None:
    path = model.ftw_path / name
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert catalog.find("m").damaged == f"{name} is {len(data) - 1} bytes, {len(data)} expected"
    path.unlink()
    assert catalog.find("m").damaged == f"{name} is missing"
    assert [d.file for d in catalog.verify(model)] == [name]
    path.write_bytes(data)
    assert catalog.find("m").damaged == ""


def test_a_flipped_bit_is_found_with_its_block(catalog: Catalog) -> None:
    ftw_id = make_ftw(catalog.paths, 5, shard_bytes=BLOCK_BYTES + 4096)
    model = catalog.commit(name_of("big"), new_model(ftw_id))
    path = model.ftw_path / "weights-00001.ftw"
    data = bytearray(path.read_bytes())
    data[BLOCK_BYTES + 7] ^= 1
    path.write_bytes(data)
    assert catalog.find("big").damaged == ""
    damage = catalog.verify(model)
    assert [(d.file, d.start, d.end) for d in damage] == [
        ("weights-00001.ftw", BLOCK_BYTES, BLOCK_BYTES + 4096)
    ]
    assert "block 1" in damage[0].reason


def test_zeros_in_a_text_blob_and_a_missing_blob_are_found(catalog: Catalog, model: Model) -> None:
    layer = next(item for item in model.layers if item.media_type.endswith("template"))
    path = catalog.blobs.path(layer.digest)
    path.write_bytes(bytes(layer.size))
    assert [d.file for d in catalog.verify(model)] == [layer.digest]
    path.unlink()
    assert catalog.find("m").damaged == f"blob {layer.digest} is missing"
    assert [d.reason for d in catalog.verify(model)] == [f"blob {layer.digest} is missing"]


def test_a_changed_index_is_not_believed(catalog: Catalog, model: Model) -> None:
    path = model.ftw_path / "index.json"
    path.write_bytes(path.read_bytes().replace(b"llama", b"lxama"))
    assert "index.json does not match" in catalog.find("m").damaged
    assert catalog.verify(model)[0].file == "index.json"


def test_a_removed_folder_is_damage_not_an_error(catalog: Catalog, model: Model) -> None:
    for path in model.ftw_path.iterdir():
        path.unlink()
    model.ftw_path.rmdir()
    assert "missing" in catalog.find("m").damaged
    assert catalog.models()[0].damaged


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{",
        b'{"shards":3}',
        b'{"shards":[{"file":"../x","bytes":1,"blocks":["a"]}]}',
        b'{"shards":[{"file":"x","bytes":99,"blocks":[]}]}',
        b'{"shards":[{"file":"x","bytes":-5,"blocks":[]}]}',
        b"[" * 100_000,
    ],
)
def test_hostile_indexes_are_told_as_problems(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "index.json").write_bytes(content)
    index = read_index(tmp_path, hashlib.sha256(content).hexdigest())
    assert index.problem
    assert index.files == ()


def test_a_shard_with_bytes_after_its_end_is_damage(catalog: Catalog, model: Model) -> None:
    path = model.ftw_path / "weights-00000.ftw"
    path.write_bytes(path.read_bytes() + b"x")
    assert "is longer than" in catalog.verify(model)[0].reason
    assert json.loads((model.ftw_path / "index.json").read_text())["version"] == 1
