"""F9: small writers on a full disk: the thing is named, nothing is lost, and then it works.

tests/architecture/test_full_disks.py says for every writer where it is tested.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from ftman import faults
from ftman.autostart.launchd import LaunchdAutostart
from ftman.autostart.systemd import SystemdAutostart
from ftman.autostart.windows import WindowsAutostart
from ftman.catalog.lock import acquire_manager_lock
from ftman.cli import line_editor
from ftman.cli.agent_files import Change, apply
from ftman.cli.external_editor import edit
from ftman.doctor.bundle import write_bundle
from ftman.errors import FtmanError, failure_of
from ftman.gateway.serve_process import _record
from ftman.keys import create_key, remove_key
from ftman.pull.ollama_registry_sign import machine_key
from ftman.supervisor.rundir import EngineRecord, make_run_folder
from tests.ftman.autostart.test_autostart import PLAIN, FakeRunner
from tests.ftman.gateway.serving import make_config
from tests.ftman.supervisor.harness import make_spec


def change_keys(folder: Path) -> None:
    """One key goes, another comes."""
    path = folder / "keys.json"
    if not path.exists():
        create_key(path, "old", "use")
    else:
        create_key(path, "new", "use")
        remove_key(path, "old")


def bundle(folder: Path) -> None:
    write_bundle(folder / "bundle.tar.gz", {}, folder / "logs", {})


def settings_of_an_agent(folder: Path) -> None:
    path = folder / "agent.json"
    old = path.read_bytes() if path.exists() else None
    apply(Change(path, old, (old or b"") + b"{}"))


def message_in_an_editor(folder: Path) -> None:
    edit("a thought", folder, {"EDITOR": "true"})


def lock_of_a_manager(folder: Path) -> None:
    acquire_manager_lock(make_config(folder).paths).release()


def record_of_a_manager(folder: Path) -> None:
    with _record(make_config(folder), ""):
        pass


def record_of_an_engine(folder: Path) -> None:
    paths = make_config(folder).paths
    run = make_run_folder(paths)
    try:
        EngineRecord(run, make_spec(), ("python",)).write(paths)
    finally:
        run.remove()


def systemd_unit(folder: Path) -> None:
    SystemdAutostart(PLAIN, folder, FakeRunner()).enable()


def launchd_agent(folder: Path) -> None:
    LaunchdAutostart(PLAIN, folder, folder / "log", 1, FakeRunner()).enable()


def windows_task(folder: Path) -> None:
    WindowsAutostart(PLAIN, folder, FakeRunner()).enable()


def key_for_a_registry(folder: Path) -> None:
    machine_key(folder)


def files_in(folder: Path) -> dict[str, bytes]:
    """What lies there, but for the lock, whose text is the owner's."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "manager.lock")
    return {str(path): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    "work",
    [
        change_keys,
        bundle,
        settings_of_an_agent,
        message_in_an_editor,
        lock_of_a_manager,
        record_of_a_manager,
        record_of_an_engine,
        systemd_unit,
        launchd_agent,
        windows_task,
        key_for_a_registry,
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["new", "there"])
def test_a_full_disk_is_named_and_nothing_is_lost(
    tmp_path: Path, work: Callable[[Path], None], again: bool
) -> None:
    if again:
        work(tmp_path)
    before = files_in(tmp_path)
    faults.arm("files.write=error:ENOSPC")
    try:
        work(tmp_path)
    except (FtmanError, OSError) as error:
        told = error if isinstance(error, FtmanError) else failure_of(error)
        assert told is not None
        assert os.strerror(errno.ENOSPC) in told.message
        assert told.hint
    else:
        assert again, "it needed no disk"
    assert files_in(tmp_path) == before
    faults.arm("")
    work(tmp_path)


def test_a_history_that_cannot_be_written_ends_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Mock()
    lines.get_current_history_length.return_value = 1
    lines.get_history_item.return_value = "new"
    monkeypatch.setattr(line_editor, "_readline", lines)
    path = tmp_path / "history"
    path.write_bytes(b'"old"\n')
    editor = line_editor.LineEditor(path)
    faults.arm("files.write=error:ENOSPC")
    editor.save()
    assert path.read_bytes() == b'"old"\n'
    faults.arm("")
    editor.save()
    assert path.read_bytes() == b'"new"\n'
