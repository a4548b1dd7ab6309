"""The HTTP/1.1 connection: uvicorn's, with limits for clients that are too many or too slow."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ftman.errors import BusyError
from ftman.gateway.errors import OLLAMA, encode_error, headers_of
from ftman.gateway.stream import raw_headers

if sys.platform != "win32":
    import resource
else:
    resource = None

log = logging.getLogger(__name__)

MOST_FILES = 65_536
RESERVED_FILES = 128
"""Open files that connections leave to everything else; half of them where there are few."""
_MORE_TO_REFUSE = 8
"""Connections beyond the limit that are told so; those beyond these are closed without a word."""
HEADER_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 120.0


def raise_open_files() -> None:
    """Take all open files that this process may have; few systems give more than 1024 at first."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.debug("the limit of open files stays at %d: %s", soft, error)


def max_connections() -> int:
    """How many connections there may be, so that files are left for everything else."""
    if resource is None:
        return MOST_FILES
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    return max(1, soft - min(RESERVED_FILES, soft // 2))


async def _too_many(scope: Any, receive: Any, send: Any) -> None:
    error = BusyError(
        f"{max_connections()} connections are open, and no more are taken",
        hint="Try again shortly. More: ulimit -n 65536, then start the manager again.",
        code="too_many_connections",
    )
    body = encode_error(OLLAMA, error)
    headers = [*headers_of(error), ("content-type", "application/json"), ("connection", "close")]
    headers.append(("content-length", str(len(body))))
    await send({"type": "http.response.start", "status": 503, "headers": raw_headers(headers)})
    await send({"type": "http.response.body", "body": body, "more_body": False})


class GuardedProtocol(H11Protocol):
    """Closes a connection whose headers take too long, or whose reader has stopped reading."""

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        room = max_connections() - len(self.connections)
        if room < -_MORE_TO_REFUSE:
            transport.abort()
            return
        if room < 0:
            self.app = _too_many
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family != getattr(socket, "AF_UNIX", None):
            # asyncio does this only for sockets made with proto=TCP. Without it head and body of
            # a small reply are 40 ms apart (measured): the peer delays its acknowledgement.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look_for_half_a_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look_for_half_a_head()

    def _look_for_half_a_head(self) -> None:
        # Half a request head in the buffer: its sender has so long for the rest of it.
        unfinished = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not unfinished:
            self._stop_header_timer()
        elif self._header_timer is None:
            self._watch_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(WRITE_TIMEOUT_S, self._give_up, "reading")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)
        self._stop_write_timer()

    def _watch_headers(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_TIMEOUT_S, self._give_up, "sending")

    def _give_up(self, what: str) -> None:
        self._header_timer = self._write_timer = None
        log.info("closing a connection: the client is too slow %s", what)
        self.transport.abort()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
