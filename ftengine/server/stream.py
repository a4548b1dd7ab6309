"""One generation as an HTTP response: events out, a disconnect in.

The engine thread hands events to the event loop, which joins what has gathered into one write. The
response starts with the first event, so that a refusal gets its own status instead of a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ftengine.protocol import ErrorEvent, Event, FinishEvent, GenerateRequest, encode, encode_line
from ftengine.runtime.engine import Engine

_STATUS = {"queue_full": 503, "draining": 503, "loading": 503, "aborted": 503, "too_large": 413}
_NDJSON = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]


def status_of(code: str) -> int:
    """HTTP status of a refusal before the stream."""
    return _STATUS.get(code, 400)


class EventStream:
    """Runs one request. Made and used on the event loop."""

    def __init__(self, engine: Engine, request: GenerateRequest) -> None:
        self._engine = engine
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._events: list[Event] = []
        self._news = asyncio.Event()
        self._gone = False

    async def run(
        self,
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Submit, then relay events until the last one. A client that leaves aborts."""
        watcher = asyncio.create_task(self._watch(receive))
        finished = False
        try:
            self._engine.submit(self._request, self._publish)
            finished = await self._relay(send)
        finally:
            watcher.cancel()
            if not finished:
                self._engine.abort(self._request.request_id)

    async def _relay(self, send: Callable[[MutableMapping[str, Any]], Awaitable[None]]) -> bool:
        started = False
        while True:
            await self._news.wait()
            self._news.clear()
            if self._gone:
                return False
            events, self._events = self._events, []
            if not events:
                continue
            if not started:
                if isinstance(events[0], ErrorEvent):
                    await _refuse(send, events[0])
                    return True
                await send({"type": "http.response.start", "status": 200, "headers": _NDJSON})
                started = True
            ended = isinstance(events[-1], FinishEvent | ErrorEvent)
            body = b"".join(encode_line(event) for event in events)
            await send({"type": "http.response.body", "body": body, "more_body": not ended})
            if ended:
                return True

    async def _watch(self, receive: Callable[[], Awaitable[MutableMapping[str, Any]]]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._news.set()

    def _publish(self, event: Event) -> None:
        """On the engine thread."""
        try:
            self._loop.call_soon_threadsafe(self._take, event)
        except RuntimeError:
            # the loop is closed: the process is ending and nobody reads any more
            return

    def _take(self, event: Event) -> None:
        self._events.append(event)
        self._news.set()


async def _refuse(
    send: Callable[[MutableMapping[str, Any]], Awaitable[None]], event: ErrorEvent
) -> None:
    body = encode(event)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    start = {"type": "http.response.start", "status": status_of(event.code), "headers": headers}
    await send(start)
    await send({"type": "http.response.body", "body": body})
