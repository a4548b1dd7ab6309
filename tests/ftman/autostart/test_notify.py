"""What the service manager is told, and that a scheduler that stands still is not kept alive."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftman.autostart.notify import Notifier, keep_fed
from ftman.clock import SYSTEM
from ftman.config import Config, Paths
from ftman.supervisor.supervisor import Supervisor

PID = os.getpid()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket that systemd would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(20)
        yield listening


def environ(listening: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": listening.getsockname(), **more}


def test_ready_feed_and_end_are_told(systemd: socket.socket) -> None:
    notifier = Notifier(environ(systemd), PID)
    notifier.ready("listens")
    notifier.feed()
    notifier.stopping()
    told = [systemd.recv(4096) for _ in range(3)]
    assert told[:2] == [b"READY=1\nSTATUS=listens", b"WATCHDOG=1"]
    assert told[2].startswith(b"STOPPING=1\n")


@pytest.mark.skipif(sys.platform != "linux", reason="abstract addresses are Linux's")
def test_an_abstract_address_is_understood() -> None:
    name = f"ft-test-{PID}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}, PID).feed()
        assert listening.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("more", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(PID)}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdog_is_for_this_process_or_not_at_all(
    more: dict[str, str], watchdog_s: float
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/x"} | more, PID).watchdog_s == watchdog_s
    assert Notifier(more, PID).watchdog_s == 0.0


def test_without_a_service_manager_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}, PID).ready("x")
    assert caplog.text == ""
    Notifier({"NOTIFY_SOCKET": "/nowhere/notify"}, PID).ready("x")
    assert "/nowhere/notify cannot be told" in caplog.text


async def _turns(moving: list[bool], notifier: Notifier) -> None:
    async def moves(within_s: float) -> bool:
        if not moving:
            raise asyncio.CancelledError
        return moving.pop(0)

    with pytest.raises(asyncio.CancelledError):
        await keep_fed(notifier, moves, SYSTEM)


def test_a_standstill_is_logged_and_not_fed(
    systemd: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(environ(systemd, WATCHDOG_USEC="4000"), PID)
    with caplog.at_level(logging.ERROR):
        asyncio.run(_turns([True, False, True], notifier))
    assert [systemd.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.recv(100)
    assert caplog.text.count("stands still") == 1


def test_without_a_watchdog_feeding_ends_at_once() -> None:
    async def never(within_s: float) -> bool:
        raise AssertionError

    asyncio.run(keep_fed(Notifier({}, PID), never, SYSTEM))


async def _supervised(tmp_path: Path) -> list[bool]:
    supervisor = Supervisor(Config(Paths(tmp_path, tmp_path / "models")), SYSTEM)
    await supervisor.start()
    found = [await supervisor.moves(5.0) for _ in range(3)]
    assert supervisor._ticker is not None
    supervisor._ticker.cancel()
    await asyncio.gather(supervisor._ticker, return_exceptions=True)
    found.append(await supervisor.moves(0.01))
    await supervisor.close()
    return found


def test_the_scheduler_moves_until_its_timers_are_dead(tmp_path: Path) -> None:
    assert asyncio.run(_supervised(tmp_path)) == [True, True, True, False]


def test_a_manager_under_systemd_says_when_it_is_ready_and_when_it_ends(
    systemd: socket.socket, tmp_path: Path
) -> None:
    variables = {key: text for key, text in os.environ.items() if not key.startswith("FT_")}
    variables |= environ(systemd, WATCHDOG_USEC="400000", FT_HOME=str(tmp_path / "home"))
    argv = [sys.executable, "-m", "ftman", "serve", "--address", "127.0.0.1:0"]
    manager = subprocess.Popen(argv, env=variables, stderr=subprocess.PIPE)
    try:
        first = systemd.recv(4096)
        assert first.startswith(b"READY=1\nSTATUS=ft ")
        assert b"listens on 127.0.0.1:" in first
        assert systemd.recv(4096) == b"WATCHDOG=1"
        assert systemd.recv(4096) == b"WATCHDOG=1"
        manager.send_signal(signal.SIGTERM)
        last = [systemd.recv(4096)]
        while last[-1] == b"WATCHDOG=1":
            last.append(systemd.recv(4096))
        assert last[-1].startswith(b"STOPPING=1")
        _, said = manager.communicate(timeout=30)
        assert manager.returncode == 0, said
    finally:
        manager.kill()
        manager.wait()
