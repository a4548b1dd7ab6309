"""An installed model is mended in place from just the bytes it lost, from any of its sources."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from ftman.catalog.model import Damage, Model
from ftman.convert.job import COMMAND
from ftman.errors import NotFoundError, UnsupportedError
from ftman.pull.jobs import PullOptions
from ftman.pull.repair import Mended
from ftman.service.verify import Verdict, Verifier
from tests.fakes import tiny_models as tiny
from tests.fakes.hub import COMMIT, BadHub
from tests.ftman.pull.conftest import Station, options

NAME = "hf.co/org/tiny"
SHARD = "weights-00000.ftw"


@dataclass(frozen=True)
class Kept:
    """One pull, made once: the source's files and the store it led to."""

    files: dict[str, bytes]
    home: Path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    sizes = tiny.sizes_of("mixtral", hidden=128, vocab=512)
    folder = tmp_path_factory.mktemp("source")
    source = tiny.build_tiny("mixtral", folder / "tiny", sizes=sizes, num_shards=3)
    home = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch, BadHub() as hub:
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        hub.add_repo("org/tiny", found := {p.name: p.read_bytes() for p in source.iterdir()})
        given = replace(options(), hub_endpoint=hub.url, converter=COMMAND)
        Station(home).pull(NAME, given)
    return Kept(found, home)


def pulled(station: Station, hub: BadHub, kept: Kept) -> tuple[Model, PullOptions, bytes]:
    shutil.copytree(kept.home, station.config.paths.home)
    hub.add_repo("org/tiny", kept.files)
    model = station.catalog.find(NAME)
    given = replace(options(), hub_endpoint=hub.url, converter=COMMAND)
    return model, given, (model.ftw_path / SHARD).read_bytes()


def spoil(model: Model, offset: int) -> None:
    path = model.ftw_path / SHARD
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def mended(station: Station, given: PullOptions, model: Model, damage: list[Damage]) -> Mended:
    async def run() -> Mended:
        manager = station.manager(given)
        try:
            items = [item async for item in manager.repair(model, damage)]
        finally:
            await manager.close()
        assert isinstance(items[-1], Mended)
        return items[-1]

    return asyncio.run(run())


def verdicts(station: Station, given: PullOptions, *, repair: bool) -> list[Verdict]:
    async def run() -> list[Verdict]:
        manager = station.manager(given)
        verifier = Verifier(station.catalog, manager)
        try:
            steps = verifier.run(station.catalog.models(), repair=repair)
            return [step async for step in steps if isinstance(step, Verdict)]
        finally:
            await manager.close()

    return asyncio.run(run())


def test_a_flipped_byte_is_named_and_mended_from_the_hub(
    station: Station, hub: BadHub, kept: Kept
) -> None:
    model, given, before = pulled(station, hub, kept)
    spoil(model, 5000)
    (found,) = verdicts(station, given, repair=False)
    assert [item.reason for item in found.left] == ["block 0 does not match its checksum"]
    asked = len(hub.asked)
    (fixed,) = verdicts(station, given, repair=True)
    assert (fixed.left, len(fixed.damage)) == ((), 1)
    assert "made anew in place" in fixed.done
    assert (model.ftw_path / SHARD).read_bytes() == before
    assert len(hub.asked) > asked
    assert station.leftovers() == []


def test_small_files_and_cut_weights_come_back(station: Station, hub: BadHub, kept: Kept) -> None:
    model, given, before = pulled(station, hub, kept)
    (model.ftw_path / SHARD).write_bytes(before[:9000])
    (model.ftw_path / "tokenizer.json").unlink()
    (fixed,) = verdicts(station, given, repair=True)
    assert fixed.left == ()
    assert (model.ftw_path / SHARD).read_bytes() == before
    assert not station.catalog.find(NAME).damaged


def test_a_source_that_lies_leaves_the_damage_as_it_is(
    station: Station, hub: BadHub, kept: Kept
) -> None:
    model, given, _ = pulled(station, hub, kept)
    spoil(model, 5000)
    spoilt = (model.ftw_path / SHARD).read_bytes()
    for path in list(hub.files):
        if path.endswith("-of-00003.safetensors"):
            hub.script(path, "ok", "flip@70000")
            data = bytearray(hub.files[path][:])
            for at in range(40_000, len(data), 1000):
                data[at] ^= 1
            hub.files[path] = bytes(data)
    found = mended(station, given, model, [Damage(SHARD, "flipped", 0, 16 << 20)])
    assert [item.file for item in found.left] == [SHARD]
    assert (model.ftw_path / SHARD).read_bytes() == spoilt


def test_a_model_whose_source_is_gone_says_so(station: Station, hub: BadHub, kept: Kept) -> None:
    model, given, _ = pulled(station, hub, kept)
    for revision in ("main", COMMIT):
        hub.script(f"/api/models/org/tiny/revision/{revision}", "404")
    with pytest.raises(NotFoundError, match="does not exist"):
        mended(station, given, model, [Damage(SHARD, "flipped", 0, 100)])
    created = replace(model, source={**model.source, "origin": "create:tiny"})
    with pytest.raises(UnsupportedError, match="cannot be repaired"):
        mended(station, given, created, [Damage(SHARD, "flipped", 0, 100)])


def test_too_much_damage_is_left_to_a_new_pull(station: Station, hub: BadHub, kept: Kept) -> None:
    model, given, _ = pulled(station, hub, kept)
    with pytest.raises(UnsupportedError, match="too much to mend in place"):
        mended(station, given, model, [Damage(SHARD, "is missing", 0, 1 << 30)])


def test_a_lost_text_is_told_apart_from_lost_weights(
    station: Station, hub: BadHub, kept: Kept
) -> None:
    model, given, _ = pulled(station, hub, kept)
    blob = Damage("sha256:" + "0" * 64, "is missing")
    assert mended(station, given, model, [blob]).left == (blob,)


@pytest.mark.slow
def test_what_cannot_be_mended_in_place_is_pulled_anew(
    station: Station, hub: BadHub, kept: Kept
) -> None:
    model, given, before = pulled(station, hub, kept)
    (model.ftw_path / "index.json").write_bytes(b"{}")
    (fixed,) = verdicts(station, given, repair=True)
    assert (fixed.left, fixed.done) == ((), "fetched and converted anew")
    assert (model.ftw_path / SHARD).read_bytes() == before
