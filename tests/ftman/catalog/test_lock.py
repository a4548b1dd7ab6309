"""One manager per store, whatever the file system says about locks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ftman import files
from ftman.catalog import lock
from ftman.catalog.lock import LOCK_NAME, OWNER_NAME, acquire_manager_lock, process_start
from ftman.config import Paths
from ftman.errors import ConflictError
from tests.ftman.catalog.samples import paths_in

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def test_a_second_manager_is_refused_with_the_owners_pid(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    with acquire_manager_lock(paths), pytest.raises(ConflictError, match=str(os.getpid())):
        acquire_manager_lock(paths)
    acquire_manager_lock(paths).release()
    assert not (paths.run / OWNER_NAME).exists()


def test_two_homes_cannot_share_one_models_folder(tmp_path: Path) -> None:
    first = Paths(tmp_path / "a", tmp_path / "models")
    with acquire_manager_lock(first), pytest.raises(ConflictError, match="models"):
        acquire_manager_lock(Paths(tmp_path / "b", tmp_path / "models"))
    acquire_manager_lock(Paths(tmp_path / "b", tmp_path / "models")).release()


@linux
def test_a_living_owner_is_believed_when_the_lock_file_was_deleted(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        record = {"pid": owner.pid, "start": process_start(owner.pid)}
        paths.run.mkdir(parents=True)
        (paths.run / OWNER_NAME).write_text(json.dumps(record))
        with pytest.raises(ConflictError, match=str(owner.pid)):
            acquire_manager_lock(paths)
        record["start"] = "12345"  # the same pid, another process
        (paths.run / OWNER_NAME).write_text(json.dumps(record))
        acquire_manager_lock(paths).release()
    finally:
        owner.communicate(b"\n", timeout=60)


def test_a_stale_lock_file_does_not_keep_anyone_out(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    paths.run.mkdir(parents=True)
    (paths.run / LOCK_NAME).write_text("999999\n")
    (paths.run / OWNER_NAME).write_text("not json")
    acquire_manager_lock(paths).release()


@linux
def test_a_new_owner_that_was_faster_keeps_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_in(tmp_path)
    owner, create = paths.run / OWNER_NAME, lock._create
    paths.run.mkdir(parents=True)
    owner.write_text("not json")
    living = json.dumps({"pid": os.getppid(), "start": process_start(os.getppid())})

    def late(path: Path, data: bytes) -> None:
        if path != owner:  # the dead owner's record was read: now somebody else takes its place
            owner.write_text(living)
        create(path, data)

    monkeypatch.setattr(lock, "_create", late)
    with pytest.raises(ConflictError, match=str(os.getppid())):
        acquire_manager_lock(paths)
    assert owner.read_text() == living
    assert [path.name for path in paths.run.glob(f"{OWNER_NAME}*")] == [OWNER_NAME]


def test_a_heir_that_died_on_the_way_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_in(tmp_path)
    paths.run.mkdir(parents=True)
    (paths.run / OWNER_NAME).write_text("not json")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(files, "rename", dies)
            with pytest.raises(KeyboardInterrupt):
                lock._claim(paths.run / OWNER_NAME, {"pid": 999_999, "start": "12345"})
    assert len(list(paths.run.glob(f"{OWNER_NAME}.*"))) == 3
    with acquire_manager_lock(paths):
        assert [path.name for path in paths.run.glob(f"{OWNER_NAME}*")] == [OWNER_NAME]
