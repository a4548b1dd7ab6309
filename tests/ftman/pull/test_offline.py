"""Models carried in folders, and models of an Ollama on the same machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest

from ftman.errors import (
    ConflictError,
    FtmanError,
    IntegrityError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from ftman.names import parse_name
from ftman.pull.offline import HEAD_NAME, export_model, import_model, is_exported, read_exported
from ftman.pull.ollama_store import find_store, place_of, store_models
from ftman.pull.progress import Progress
from tests.ftman.catalog.samples import broken_invariants, catalog_in, make_ftw, name_of, new_model
from tests.ftman.pull.conftest import Station, gguf_bytes

GGUF = gguf_bytes(50_001)
PREFIX = "application/vnd.ollama.image."


def exported(tmp_path: Path) -> Path:
    """A model written out of a store of its own."""
    catalog = catalog_in(tmp_path / "first")
    model = catalog.commit(name_of("m", "x"), new_model(make_ftw(catalog.paths, 1)))
    folder = tmp_path / "stick"
    counted: list[int] = []
    export_model(catalog, model, folder, counted.append)
    assert sum(counted) <= model.size_bytes
    return folder


def take_in(station: Station, folder: Path, name: str = "") -> list[Progress]:
    async def run() -> list[Progress]:
        manager = station.manager()
        try:
            return [step async for step in import_model(manager, read_exported(folder, name))]
        finally:
            await manager.close()

    return asyncio.run(run())


def test_a_model_travels_in_a_folder(tmp_path: Path, station: Station) -> None:
    folder = exported(tmp_path)
    assert is_exported(folder)
    assert take_in(station, folder)[-1].status == "success"
    there, here = catalog_in(tmp_path / "first").find("m:x"), station.catalog.find("m:x")
    assert (here.digest, here.system, here.ftw_id) == (there.digest, there.system, there.ftw_id)
    assert broken_invariants(station.config.paths) == []
    assert station.leftovers() == []
    take_in(station, folder, "other:y")  # the weights are here: nothing is copied twice
    assert station.catalog.find("other:y").ftw_id == here.ftw_id


@pytest.mark.parametrize("victim", ["ftw", "blobs", "index"])
def test_damage_on_the_way_is_found_and_nothing_is_installed(
    tmp_path: Path, station: Station, victim: str
) -> None:
    folder = exported(tmp_path)
    pattern = {"ftw": "ftw/*/weights-00001.ftw", "blobs": "blobs/*", "index": "ftw/*/index.json"}
    path = sorted(folder.glob(pattern[victim]))[0]
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(IntegrityError):
        take_in(station, folder)
    with pytest.raises(NotFoundError):
        station.catalog.find("m:x")
    assert broken_invariants(station.config.paths) == []
    assert station.leftovers() == []


def test_folders_that_are_not_complete_or_not_ours_are_refused(tmp_path: Path) -> None:
    folder = exported(tmp_path)
    head = json.loads((folder / HEAD_NAME).read_text())
    (folder / HEAD_NAME).write_text(json.dumps({**head, "version": 99}))
    with pytest.raises(UsageError, match="99"):
        read_exported(folder)
    (folder / HEAD_NAME).write_text("[]")
    with pytest.raises(IntegrityError):
        read_exported(folder)
    (folder / HEAD_NAME).unlink()
    with pytest.raises(NotFoundError, match="holds no exported model"):
        read_exported(folder)


def test_an_export_overwrites_nothing_and_refuses_damage(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path / "first")
    model = catalog.commit(name_of("m"), new_model(make_ftw(catalog.paths, 1)))
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(ConflictError, match="is there already"):
        export_model(catalog, model, folder, lambda _: None)
    (model.ftw_path / "weights-00000.ftw").unlink()
    with pytest.raises(IntegrityError, match="damaged"):
        export_model(catalog, catalog.find("m"), tmp_path / "new", lambda _: None)


def ollama_store(folder: Path, name: str = "tinyoll", **extra: bytes) -> Path:
    """A store as Ollama lays it out, with one model."""
    blobs = folder / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)

    def layer(kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / f"sha256-{digest}").write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    layers = [layer(PREFIX + "model", GGUF), layer(PREFIX + "system", b"Be brief.")]
    layers += [layer(PREFIX + kind, data) for kind, data in extra.items()]
    config = layer("application/vnd.docker.container.image.v1+json", b"{}")
    value = {"schemaVersion": 2, "config": config, "layers": layers}
    path = folder / "manifests" / "registry.ollama.ai" / "library" / name / "latest"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(value))
    return folder


def snapshot(folder: Path) -> list[tuple[str, int, int]]:
    stats = ((path, path.lstat()) for path in sorted(folder.rglob("*")))
    return [(str(path), stat.st_mtime_ns, stat.st_size) for path, stat in stats]


def test_a_model_of_ollamas_is_taken_over_and_its_store_left_alone(
    tmp_path: Path, station: Station
) -> None:
    store = ollama_store(tmp_path / "ollama", params=b'{"temperature":0.3}')
    before = snapshot(store)
    (found,) = store_models(store)
    assert (found.name.short, found.bytes, found.problem) == ("tinyoll:latest", len(GGUF), "")
    steps = station.pull(place_of(store, found.name))
    assert steps[-1].status == "success"
    model = station.catalog.find("tinyoll")
    assert (model.system, model.parameters) == ("Be brief.", {"temperature": 0.3})
    assert station.weights("tinyoll") == GGUF
    assert snapshot(store) == before
    again = station.pull(place_of(store, found.name))
    assert again[-1].detail == "up to date"


def test_the_kept_source_is_a_second_name_for_the_blob(tmp_path: Path, station: Station) -> None:
    store = ollama_store(tmp_path / "ollama")
    station.pull(place_of(store, parse_name("tinyoll")), keep_source=True)
    (kept,) = (station.config.paths.models / "sources").rglob("*.gguf")
    digest = hashlib.sha256(GGUF).hexdigest()
    assert kept.samefile(store / "blobs" / f"sha256-{digest}")


def test_what_cannot_be_taken_over_says_why(tmp_path: Path, station: Station) -> None:
    store = ollama_store(tmp_path / "ollama", adapter=b"lora")
    assert "LoRA adapter" in store_models(store)[0].problem
    with pytest.raises(UnsupportedError, match="LoRA"):
        station.pull(place_of(store, parse_name("tinyoll")))
    with pytest.raises(FtmanError, match="has no model"):
        station.pull(place_of(store, parse_name("nobody")))
    other = ollama_store(tmp_path / "torn")
    (other / "blobs" / f"sha256-{hashlib.sha256(GGUF).hexdigest()}").write_bytes(b"cut")
    with pytest.raises(IntegrityError, match="missing or not"):
        station.pull(place_of(other, parse_name("tinyoll")))


def test_a_text_that_was_changed_is_not_believed(tmp_path: Path, station: Station) -> None:
    store = ollama_store(tmp_path / "ollama")
    digest = hashlib.sha256(b"Be brief.").hexdigest()
    (store / "blobs" / f"sha256-{digest}").write_bytes(b"Be rude!!")
    with pytest.raises(IntegrityError, match="does not match its digest"):
        station.pull(place_of(store, parse_name("tinyoll")))


def test_the_store_is_looked_for_where_ollama_keeps_it(tmp_path: Path) -> None:
    store = ollama_store(tmp_path / ".ollama" / "models")
    assert find_store({}, tmp_path) == store
    assert find_store({"OLLAMA_MODELS": str(store)}, Path("/none")) == store
    with pytest.raises(NotFoundError, match="no store of Ollama"):
        find_store({"OLLAMA_MODELS": str(tmp_path / "none")}, tmp_path)
