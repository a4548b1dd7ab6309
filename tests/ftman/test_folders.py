"""Folders that cannot be used are told by name, cause and next step, before anything is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftman.config import load_config
from ftman.errors import FtmanError
from ftman.folders import require_folders, trouble_with

PROC = pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")


def refused(home: Path, **settings: str) -> FtmanError:
    with pytest.raises(FtmanError) as caught:
        require_folders(load_config({"FT_HOME": str(home), **settings}))
    return caught.value


def test_what_is_missing_is_made(tmp_path: Path) -> None:
    config = load_config({"FT_HOME": str(tmp_path / "a" / "b"), "FT_MODELS": str(tmp_path / "m")})
    require_folders(config)
    assert config.paths.home.is_dir()
    assert config.paths.models.is_dir()


@pytest.mark.parametrize("name", ["FT_HOME", "FT_MODELS", "FT_PARK_DISK"])
@pytest.mark.parametrize("below", ["", "x/y"])
def test_a_file_is_no_folder(tmp_path: Path, name: str, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("")
    told = refused(tmp_path / "home", **{name: str(file / below)})
    assert told.message == f"the folder {file / below} cannot be used: {file} is a file"
    assert f"{name}=FOLDER" in told.hint


@PROC
def test_a_folder_that_cannot_be_made_is_told_with_the_cause() -> None:
    told = refused(Path("/proc/no-such"))
    assert "the folder /proc/no-such cannot be used: it cannot be made: " in told.message


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    assert refused(tmp_path).message.endswith("cannot be used: it cannot be written")


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    assert trouble_with(tmp_path / "a" / "b", leave_it=False) == ""
    assert list(tmp_path.iterdir()) == []
