"""F11: shards of a checkpoint, or of installed weights, are cut, longer, gone, renamed, swapped."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ftengine.convert.local import convert_folder
from ftengine.errors import EngineError
from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import Rig, runs
from tests.fakes.tiny_models import TinySizes, build_tiny
from tests.ftman.catalog.samples import catalog_in, make_ftw, name_of, new_model

SHARDS = 3
SIZES = TinySizes(layers=1)
Damage = Callable[[list[Path], random.Random], list[Path]]
"""Changes some shards; returns those whose names an error may give."""


def cut(shards: list[Path], rng: random.Random) -> list[Path]:
    """The end is missing, perhaps nearly all of it."""
    path = rng.choice(shards)
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))
    return [path]


def longer(shards: list[Path], rng: random.Random) -> list[Path]:
    """Something was appended."""
    path = rng.choice(shards)
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 5000)))
    return [path]


def removed(shards: list[Path], rng: random.Random) -> list[Path]:
    """One is not there."""
    path = rng.choice(shards)
    path.unlink()
    return [path]


def renamed(shards: list[Path], rng: random.Random) -> list[Path]:
    """One has another name."""
    path = rng.choice(shards)
    path.rename(path.with_name(f"other{path.suffix}"))
    return [path]


def swapped(shards: list[Path], rng: random.Random) -> list[Path]:
    """Two have each other's name. Shards of a checkpoint say themselves what they hold."""
    one, two = rng.sample(shards, 2)
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    return [one, two]


SOURCE_DAMAGES: tuple[Damage, ...] = (cut, longer, removed, renamed)
DAMAGES: tuple[Damage, ...] = (*SOURCE_DAMAGES, swapped)


def weights(folder: Path) -> bytes:
    """All bytes of converted weights."""
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.ftw")))


def test_a_stray_shard_or_another_order_changes_nothing(tmp_path: Path, rng: random.Random) -> None:
    folder = build_tiny("llama", tmp_path / "source", sizes=SIZES, num_shards=SHARDS)
    convert_folder(folder, tmp_path / "whole")
    stray = folder / f"model-{SHARDS + 1:05d}-of-{SHARDS:05d}.safetensors"
    shards = sorted(folder.glob("*.safetensors"))
    stray.write_bytes(shards[0].read_bytes())
    swapped(shards, rng)
    convert_folder(folder, tmp_path / "again")
    assert weights(tmp_path / "again") == weights(tmp_path / "whole")


@runs
def test_a_damaged_checkpoint_is_refused_by_the_name_of_the_shard(
    rig: Rig, num_points: int
) -> None:
    for number in range(num_points):
        folder = rig.root / f"source-{number}"
        build_tiny("llama", folder, seed=number, sizes=SIZES, num_shards=SHARDS)
        damage = SOURCE_DAMAGES[number % len(SOURCE_DAMAGES)]
        hurt = damage(sorted(folder.glob("*.safetensors")), rig.rng)
        with pytest.raises(EngineError) as caught:
            convert_folder(folder, rig.root / f"target-{number}")
        named = [path.name for path in hurt if path.name in str(caught.value)]
        assert named, (damage.__name__, hurt, str(caught.value))
        assert not (rig.root / f"target-{number}" / "index.json").exists()
    rig.check_outside()


@runs
def test_damaged_weights_are_found_by_the_name_of_the_shard(rig: Rig, num_points: int) -> None:
    catalog = catalog_in(rig.home)
    for number in range(num_points):
        ftw_id = make_ftw(catalog.paths, number)
        model = catalog.commit(name_of(f"m{number}"), new_model(ftw_id))
        invariants.sound_models(catalog.paths.models)
        damage = DAMAGES[number % len(DAMAGES)]
        hurt = damage(sorted(model.ftw_path.glob("*.ftw")), rig.rng)
        found = {item.file for item in catalog.verify(model)}
        assert found == {path.name for path in hurt}, (damage.__name__, found)
        if damage is not swapped:  # of the same size, and found by its bytes alone
            assert catalog.find(f"m{number}").damaged
        catalog.delete(f"m{number}", lambda _: False)
        catalog.sweep([], grace_s=-1e6)
        invariants.no_orphans(catalog.paths.models)
    rig.check_outside()
