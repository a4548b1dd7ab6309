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

from ftman.errors import BusyError, FtmanError
from ftman.gateway.errors import internal_error, to_json
from ftman.gateway.routes import StreamReply

log = logging.getLogger(__name__)

HEARTBEAT_S = 8.0
"""Longest silence of a stream; clients and proxies are promised a byte within 10 s."""
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
    """Carries one StreamReply to one client. `cut` ends it early with an error inside."""

    def __init__(self, reply: StreamReply, heartbeat_s: float = HEARTBEAT_S):
        self._reply = reply
        self._heartbeat_s = heartbeat_s
        self._next: asyncio.Task[bytes] | None = None
        self._cut: FtmanError | None = None
        self.started = False
        self.failed: FtmanError | None = None

    def cut(self, error: FtmanError) -> None:
        """End the stream with `error` instead of its next piece."""
        self._cut = error
        if self._next is not None:
            self._next.cancel()

    async def run(self, send: Send, head: Sequence[tuple[str, str]]) -> None:
        """Send everything.   Raises: FtmanError only while no status has been sent."""
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

    async def _piece(self) -> bytes | None:
        """The next piece, a sign of life after a silence, or None at the end."""
        if self._next is None:
            self._next = asyncio.ensure_future(_advance(self._reply.pieces))
        done, _ = await asyncio.wait({self._next}, timeout=self._heartbeat_s)
        if not done:
            return self._reply.heartbeat()
        task, self._next = self._next, None
        try:
            return task.result()
        except StopAsyncIteration:
            return None
        except FtmanError:
            raise
        except asyncio.CancelledError:
            raise (self._cut or BusyError("the request was cancelled")) from None
        except Exception:
            log.exception("a stream failed")
            raise internal_error() from None

    async def _start(self, send: Send, head: Sequence[tuple[str, str]]) -> None:
        self.started = True
        headers = [("content-type", self._reply.media_type), *self._reply.headers, *head]
        await send({"type": "http.response.start", "status": 200, "headers": raw_headers(headers)})

    async def _close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
                await self._next
            self._next = None
        close = getattr(self._reply.pieces, "aclose", None)
        if close is not None:
            await close()


async def _advance(pieces: AsyncIterator[bytes]) -> bytes:
    # StopAsyncIteration may not leave a coroutine's task as a result; it does as an exception.
    return await pieces.__anext__()


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
