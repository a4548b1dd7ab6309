"""A pytest plugin: says which module met a full disk in which test. For test_full_disks.py."""

from __future__ import annotations

import errno
import sys

import pytest

from ftman import faults

BEGIN = "FULL DISK "
_LAYER = ("ftman.files", "ftman.faults")
_seen: set[tuple[str, str]] = set()
_test = ""
_hit = faults.hit


def _noting(point: str) -> None:
    try:
        _hit(point)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _seen.add((_writer(), _test))
        raise


def _writer() -> str:
    """The module that asked the file layer to write."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(("ftman.", "ftengine.")) and name not in _LAYER:
            return name
        frame = frame.f_back
    return ""


def pytest_configure() -> None:
    faults.hit = _noting


def pytest_runtest_setup(item: pytest.Item) -> None:
    global _test
    _test = item.nodeid.partition("[")[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for writer, test in sorted(_seen):
        terminalreporter.write_line(f"{BEGIN}{writer} {test}")
