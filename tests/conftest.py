"""Every test runs in a clean environment, without the network and without the user's own store."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftman import faults
from tests.e2e.faults import ledger, table

_LOCAL = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::")
_BEGUN_WALL_S = time.time()


def pytest_configure() -> None:
    """A run in the background of a script ignores Ctrl-C, and so would all that it starts.

    Nothing of what is collected can go, so looking for garbage in it only takes time.
    """
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """From here on there is garbage."""
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> None:
    """What earlier files left is not looked through again: a manager inside collects often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No FT_* or OLLAMA_* setting leaks in; the store lies in the test's own folder."""
    for key in list(os.environ):
        if key.startswith(("FT_", "OLLAMA_")):
            monkeypatch.delenv(key)
    monkeypatch.setenv("FT_HOME", str(tmp_path / "ft-home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("NO_PROXY", "*")
    yield
    faults.arm("")
    faults.listen(None)


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that would leave this machine fails the test."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and address[0] not in _LOCAL:
            raise OSError(f"a test tried to reach {address[0]}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of faults, invariants and service levels, if any of them were tested."""
    lines = table.lines_of(ledger.read_all(_BEGUN_WALL_S))
    if lines:
        terminalreporter.section("faults")
        terminalreporter.write("\n".join(lines) + "\n")
