"""The end of a log and what is added to it, through cuts and replacements."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftman.errors import NotFoundError
from ftman.service.logs import LogTail, list_logs


def test_the_last_lines_come_first_then_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("1\n2\n3\n")
    tail = LogTail(tmp_path, "a", 2)
    assert tail.read() == b"2\n3\n"
    assert tail.read() == b""
    with path.open("a") as log:
        log.write("4\n5")
    assert tail.read() == b"4\n5"


def test_a_log_that_was_cut_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("a long first line\n")
    tail = LogTail(tmp_path, "a", 10)
    tail.read()
    os.truncate(path, 0)
    assert tail.read() == b""
    path.write_text("new\n")
    assert tail.read() == b"new\n"


def test_a_log_that_was_replaced_or_is_gone_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old\n")
    tail = LogTail(tmp_path, "a", 10)
    tail.read()
    path.rename(tmp_path / "a.log.1")
    assert tail.read() == b""
    path.write_text("a much longer new line\n")
    assert tail.read() == b"a much longer new line\n"


def test_no_lines_means_only_what_comes(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("1\n")
    assert LogTail(tmp_path, "a", 0).read() == b""


def test_logs_that_do_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        LogTail(tmp_path / "none", "a", 1)
    assert "none yet" in caught.value.hint
    (tmp_path / "b.log").write_text("")
    for name in ("a", "../b", "b.log", ""):
        with pytest.raises(NotFoundError) as caught:
            LogTail(tmp_path, name, 1)
        assert "b" in caught.value.hint


def test_the_manager_comes_before_engines_and_the_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("engine-a", "engine-b", "manager", "serve")):
        path = tmp_path / f"{name}.log"
        path.write_text(name)
        os.utime(path, (100 - age, 100 - age))
    (tmp_path / "engine-a.log.1").write_text("")
    assert [log.name for log in list_logs(tmp_path)] == ["manager", "serve", "engine-a", "engine-b"]
    assert list_logs(tmp_path / "none") == []
