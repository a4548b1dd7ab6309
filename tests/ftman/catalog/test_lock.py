"""One manager per store, whatever the file system says about locks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
