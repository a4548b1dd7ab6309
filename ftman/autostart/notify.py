"""Tells the service manager that we are ready, alive, ending: systemd's datagrams, by hand.

Whether we are alive is for others to say; where no service manager listens nothing is sent.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from ftman.clock import Clock

log = logging.getLogger(__name__)

FEEDS_PER_PERIOD = 4
"""Systemd advises two; with four, one late feed is no death."""


class Notifier:
    """Sends to the socket that the environment names. watchdog_s: 0 = nobody waits for feeds.

    Source: sd_notify(3), sd_watchdog_enabled(3).
    """

    def __init__(self, environ: Mapping[str, str], pid: int):
        self._address = environ.get("NOTIFY_SOCKET", "")
        period_us = environ.get("WATCHDOG_USEC", "")
        meant = environ.get("WATCHDOG_PID", "") in ("", str(pid))
        fed = bool(self._address) and meant and period_us.isascii() and period_us.isdigit()
        self.watchdog_s = int(period_us) / 1e6 if fed else 0.0

    def ready(self, status: str) -> None:
        """The manager answers. status: one line for `systemctl status`."""
        self._send(f"READY=1\nSTATUS={status}")

    def feed(self) -> None:
        """Start the watchdog's period anew."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1\nSTATUS=stopping: answers under way are finished")

    def _send(self, message: str) -> None:
        if not self._address or not hasattr(socket, "AF_UNIX"):
            return
        # A leading @ stands for the NUL byte of Linux's abstract addresses.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as out:
                out.setblocking(False)
                out.connect(address)
                out.send(message.encode())
        except OSError as error:
            log.warning("the service manager at %s cannot be told: %s", self._address, error)


async def keep_fed(
    notifier: Notifier, moves: Callable[[float], Awaitable[bool]], clock: Clock
) -> None:
    """Feed the watchdog while `moves` (within so many seconds) says that work goes on.

    A standstill is logged and not fed: then the service manager ends this process and starts it
    anew. Returns at once where no watchdog waits.
    """
    pause_s = notifier.watchdog_s / FEEDS_PER_PERIOD
    while pause_s:
        if await moves(pause_s):
            notifier.feed()
        else:
            log.error("the scheduler stands still: the watchdog is not fed")
        await clock.sleep(pause_s)
