"""Answers in pieces: NDJSON and SSE framing, signs of life, errors before and after the status.

The first piece is awaited before any status goes out, so that a failure until then has its true
status. A silence longer than HEARTBEAT_S ends that wait: headers and a sign of life are sent, and
later failures travel inside the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from ftman.errors import BusyError, FtmanError, failure_of
from ftman.gateway.errors import internal_error, to_json
from ftman.gateway.routes import StreamReply

log = logging.getLogger(__name__)

HEARTBEAT_S = 8.0
"""Longest silence of a stream; clients and proxies are promised a byte within 10 s."""
MADE_LIMIT_BYTES = 1 << 18
"""Pieces waiting for a slow reader; then no more are made."""
NDJSON = "application/x-ndjson"
SSE = "text/event-stream; charset=utf-8"
SSE_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
KEEP_ALIVE_COMMENT = b": keep-alive\n\n"

Send = Callable[[dict[str, Any]], Awaitable[None]]


def ndjson(value: Any) -> bytes:
    """One object, one line."""
    return to_json(value) + b"\n"


def sse(value: Any) -> bytes:
    """One `data:` frame."""
    return b"data: " + to_json(value) + b"\n\n"


class Pump:
    """Carries one StreamReply to one client. `cut` ends it early with an error inside.

    Pieces are made in a task of their own and sent from this one: whatever was made while a send
    was under way goes out together, so that a busy manager sends fewer, longer packets.
    """

    def __init__(self, reply: StreamReply, heartbeat_s: float = HEARTBEAT_S):
        self._reply = reply
        self._heartbeat_s = heartbeat_s
        self._maker: asyncio.Task[None] | None = None
        self._made: list[bytes] = []
        self._made_bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._cut: FtmanError | None = None
        self.started = False
        self.failed: FtmanError | None = None

    def cut(self, error: FtmanError) -> None:
        """End the stream with `error` instead of its next piece."""
        self._cut = error
        if self._maker is not None:
            self._maker.cancel()

    async def run(self, send: Send, head: Sequence[tuple[str, str]]) -> None:
        """Send everything.   Raises: FtmanError only while no status has been sent."""
        self._maker = asyncio.ensure_future(self._make())
        try:
            while True:
                piece = await self._piece()
                if piece is None:
                    break
                if not self.started:
                    await self._start(send, head)
                if piece:
                    await _body(send, piece, more=True)
        except FtmanError as error:
            if not self.started:
                raise
            self.failed = error
            await _body(send, self._reply.on_error(error), more=True)
        finally:
            await self._close()
        if not self.started:
            await self._start(send, head)
        await _body(send, b"", more=False)

    async def _make(self) -> None:
        try:
            async for piece in self._reply.pieces:
                self._made.append(piece)
                self._made_bytes += len(piece)
                self._news.set()
                if self._made_bytes > MADE_LIMIT_BYTES:
                    self._room.clear()
                    await self._room.wait()
        finally:
            close = getattr(self._reply.pieces, "aclose", None)
            if close is not None:
                await close()
            self._news.set()

    async def _piece(self) -> bytes | None:
        """What has been made, a sign of life after a silence, or None at the end."""
        assert self._maker is not None
        if not self._made and not self._maker.done() and not await self._heard():
            return self._reply.heartbeat()
        if self._made:
            piece = b"".join(self._made)
            self._made.clear()
            self._made_bytes = 0
            self._news.clear()
            self._room.set()
            return piece
        await asyncio.wait({self._maker})
        self._raise_failure(self._maker)
        return None

    async def _heard(self) -> bool:
        """Wait for a piece or the end; False after a silence."""
        timer = asyncio.get_running_loop().call_later(self._heartbeat_s, self._news.set)
        await self._news.wait()
        timer.cancel()
        self._news.clear()
        assert self._maker is not None
        return bool(self._made) or self._maker.done()

    def _raise_failure(self, maker: asyncio.Task[None]) -> None:
        try:
            maker.result()
        except FtmanError:
            raise
        except asyncio.CancelledError:
            raise (self._cut or BusyError("the request was cancelled")) from None
        except Exception as error:
            told = failure_of(error)
            if told is None:
                log.exception("a stream failed", exc_info=error)
            raise told or internal_error() from None

    async def _start(self, send: Send, head: Sequence[tuple[str, str]]) -> None:
        self.started = True
        headers = [("content-type", self._reply.media_type), *self._reply.headers, *head]
        await send({"type": "http.response.start", "status": 200, "headers": raw_headers(headers)})

    async def _close(self) -> None:
        if self._maker is not None:
            self._maker.cancel()
            await asyncio.gather(self._maker, return_exceptions=True)


async def _body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def raw_headers(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Headers as ASGI wants them."""
    return [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in headers]


async def merge(streams: Sequence[AsyncIterator[Any]]) -> AsyncIterator[tuple[int, Any]]:
    """Interleave several iterators as (index, item); the first failure ends all of them."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:  # type: ignore[type-var]
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, Any, BaseException | None]] = asyncio.Queue(len(streams))
    tasks = [asyncio.ensure_future(_feed(i, s, queue)) for i, s in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            index, item, error = await queue.get()
            if error is not None:
                raise error
            if item is _END:
                running -= 1
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_END = object()


async def _feed(
    index: int,
    stream: AsyncIterator[Any],
    queue: asyncio.Queue[tuple[int, Any, BaseException | None]],
) -> None:
    try:
        async with contextlib.aclosing(stream) as items:  # type: ignore[type-var]
            async for item in items:
                await queue.put((index, item, None))
        await queue.put((index, _END, None))
    except asyncio.CancelledError:
        raise
    except Exception as error:  # handed to the consumer, which raises it
        await queue.put((index, None, error))
