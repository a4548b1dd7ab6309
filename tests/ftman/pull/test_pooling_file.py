"""An embedding model's 1_Pooling/config.json comes along, and never in the place of config.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftman.errors import UsageError
from ftman.pull.choose import POOLING_FILE, SAFETENSORS_PATTERNS, choose_by_patterns, flat_name
from ftman.pull.folder import resolve_local

NAMES = ["config.json", "model.safetensors", POOLING_FILE, "2_Dense/config.json", "README.md"]


def written(folder: Path) -> Path:
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


def test_one_nested_file_is_chosen_and_gets_a_name_of_its_own() -> None:
    chosen = choose_by_patterns(NAMES, SAFETENSORS_PATTERNS)
    assert chosen == sorted([POOLING_FILE, "config.json", "model.safetensors"])
    assert [flat_name(name) for name in chosen] == [
        "1_Pooling.config.json",
        "config.json",
        "model.safetensors",
    ]
    assert flat_name("sub/model.safetensors") == "model.safetensors"


def test_local_folder_brings_it(tmp_path: Path) -> None:
    found = {item.name: item.path for item in resolve_local(written(tmp_path)).files}
    assert found == {
        "1_Pooling.config.json": tmp_path / POOLING_FILE,
        "config.json": tmp_path / "config.json",
        "model.safetensors": tmp_path / "model.safetensors",
    }


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "model")
    (folder / POOLING_FILE).unlink()
    (tmp_path / "secret").write_text("{}")
    (folder / POOLING_FILE).symlink_to(tmp_path / "secret")
    with pytest.raises(UsageError, match="leads out of its folder"):
        resolve_local(folder)
