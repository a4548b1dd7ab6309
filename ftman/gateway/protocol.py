"""The HTTP/1.1 connection: uvicorn's, with limits for clients that send or read too slowly."""

from __future__ import annotations

import asyncio
import logging
import socket

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

HEADER_TIMEOUT_S = 30.0
WRITE_TIMEOUT_S = 120.0


class GuardedProtocol(H11Protocol):
    """Closes a connection whose headers take too long, or whose reader has stopped reading."""

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
