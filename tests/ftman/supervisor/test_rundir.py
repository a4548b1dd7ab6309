"""Run folders, records and logs on disk."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ftman.supervisor.rundir import (
    EngineLog,
    EngineRecord,
    make_run_folder,
    read_records,
    started,
)
from tests.ftman.supervisor.harness import make_config, make_spec


def test_run_folder_is_private_and_its_socket_short(tmp_path: Path) -> None:
    run = make_run_folder(make_config(tmp_path).paths)
    assert run.folder.stat().st_mode & 0o777 == 0o700
    assert run.token_path.stat().st_mode & 0o777 == 0o600
    assert run.address == f"unix:{run.folder}/engine.sock"
    run.remove()
    assert not run.folder.exists()


def test_long_home_gets_a_short_private_socket_folder(tmp_path: Path) -> None:
    run = make_run_folder(make_config(tmp_path / ("x" * 100)).paths)
    kind, _, place = run.address.partition(":")
    if kind == "unix":
        assert len(os.fsencode(place)) <= 100
        assert Path(place).parent.stat().st_mode & 0o077 == 0
    else:
        assert place == "127.0.0.1:0"
    run.remove()


def test_a_short_socket_folder_is_found_without_a_trace_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in the moment in which a temporary folder is tried out would leave a file in it."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", lambda: pytest.fail("tried one out"))
    for session in ("", str(tmp_path / "none"), str(tmp_path)):
        monkeypatch.setenv("XDG_RUNTIME_DIR", session)
        make_run_folder(make_config(tmp_path / ("x" * 100)).paths).remove()
    assert {path.name for path in tmp_path.iterdir()} <= {"x" * 100, "ft"}


def test_without_unix_sockets_the_engine_picks_a_loopback_port(tmp_path: Path) -> None:
    assert make_run_folder(make_config(tmp_path).paths, unix=False).address == "tcp:127.0.0.1:0"


def test_record_survives_a_round_trip_and_does_not_hold_the_token(tmp_path: Path) -> None:
    paths = make_config(tmp_path).paths
    run = make_run_folder(paths)
    record = started(EngineRecord(run, make_spec(), ("a", "b c")), 17, "boot:1")
    record.write(paths)
    assert read_records(paths) == [record]
    assert run.token not in record.path(paths).read_text()
    record.remove(paths)
    assert read_records(paths) == []


def test_log_names_cannot_leave_the_log_folder(tmp_path: Path) -> None:
    paths = make_config(tmp_path).paths
    for name in ("hf.co/org/repo:q4", "../../etc/passwd", "..", "a\nb"):
        path = EngineLog(paths, name).path
        assert path.parent == paths.logs
        assert "\n" not in path.name


def test_log_rotates_under_a_writer_that_keeps_it_open(tmp_path: Path) -> None:
    log = EngineLog(make_config(tmp_path).paths, "m")
    fds: list[int] = []
    log.open_for(lambda fd: fds.append(os.dup(fd)))
    try:
        for number in range(5):
            os.write(fds[0], f"line {number} {'x' * 100}\n".encode())
            log.rotate(limit_bytes=100)
        os.write(fds[0], b"the end\n")
    finally:
        os.close(fds[0])
    names = sorted(path.name for path in log.path.parent.iterdir())
    assert names == ["engine-m.log", "engine-m.log.1", "engine-m.log.2", "engine-m.log.3"]
    assert log.path.read_bytes() == b"the end\n"
    assert b"line 4" in (log.path.parent / "engine-m.log.1").read_bytes()


def test_tail_shows_only_this_engine_s_last_words_without_control_codes(tmp_path: Path) -> None:
    log = EngineLog(make_config(tmp_path).paths, "m")
    log.path.parent.mkdir(parents=True)
    log.path.write_text("from another run\n")
    log.open_for(lambda fd: None)
    assert log.tail() == ""
    with log.path.open("a") as file:
        file.write("one\n\x1b[31mtwo\n2026-01-01 INFO engine: request done\n")
    assert log.tail() == "one | ?[31mtwo"
