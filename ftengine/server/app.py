"""The routes as a plain ASGI application: /health, /info, /generate, /embed, /memory, /metrics.

No framework: six routes, JSON or NDJSON bodies. Life and death of the process stand in serve.py,
the event stream of one request in stream.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Generic, TypeVar

from ftengine.errors import RequestError
from ftengine.protocol import (
    LINE_LIMIT_BYTES,
    EmbedReply,
    EmbedRequest,
    ErrorEvent,
    GenerateRequest,
    MemoryRequest,
    MemoryState,
    ProtocolError,
    decode,
    encode,
)
from ftengine.runtime.engine import Engine
from ftengine.server.stream import EventStream, status_of

log = logging.getLogger(__name__)

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_METHODS = {
    "/health": "GET",
    "/info": "GET",
    "/metrics": "GET",
    "/generate": "POST",
    "/embed": "POST",
    "/memory": "POST",
}


class App:
    """ASGI callable. on_health is told of every /health, the manager's sign of life."""

    def __init__(self, engine: Engine, token: str, on_health: Callable[[], None]) -> None:
        self._engine = engine
        self._token = token.encode()
        self._on_health = on_health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        refused = self._refuse(scope)
        if refused is not None:
            await _send_error(send, *refused)
            return
        path = scope["path"]
        if path == "/generate":
            await self._generate(receive, send)
        elif path == "/embed":
            await self._embed(receive, send)
        elif path == "/memory":
            await self._memory(receive, send)
        elif path == "/health":
            self._on_health()
            health = self._engine.health()
            await _send(send, 200 if health.state in ("ready", "draining") else 503, encode(health))
        elif path == "/metrics":
            text = self._engine.metrics_text().encode()
            await _send(send, 200, text, b"text/plain; version=0.0.4")
        elif self._not_ready() is not None:
            await _send_error(send, 503, *self._not_ready_event())
        else:
            await _send(send, 200, encode(self._engine.info))

    def _refuse(self, scope: Scope) -> tuple[int, str, str] | None:
        if self._token:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self._token):
                return 401, "unauthorized", "send the engine's token as Authorization: Bearer"
        method = _METHODS.get(scope["path"])
        if method is None:
            return 404, "not_found", f"{scope['path']} is no route of an engine"
        if method != scope["method"]:
            return 405, "method_not_allowed", f"{scope['path']} answers to {method}"
        return None

    def _not_ready(self) -> str | None:
        state = self._engine.health().state
        return None if state in ("ready", "draining") else state

    def _not_ready_event(self) -> tuple[str, str, bool]:
        health = self._engine.health()
        if health.state == "failed":
            return "load_failed", health.error or "the model could not be loaded", False
        return "loading", "the model is still loading; ask /health until it is ready", True

    async def _generate(self, receive: Receive, send: Send) -> None:
        request = await self._read(GenerateRequest, receive, send)
        if request is not None:
            await EventStream(self._engine, request).run(receive, send)

    async def _embed(self, receive: Receive, send: Send) -> None:
        request = await self._read(EmbedRequest, receive, send)
        if request is None:
            return
        answered = Answered[EmbedReply]()
        self._engine.embed(request, answered.answer)
        gone = asyncio.create_task(_until_gone(receive))
        either: set[asyncio.Future[Any]] = {answered.future, gone}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if answered.future.done():
                await _send_answer(send, answered.future.result())
        finally:
            gone.cancel()
            if not answered.future.done():
                self._engine.abort(request.request_id)

    async def _memory(self, receive: Receive, send: Send) -> None:
        request = await self._read(MemoryRequest, receive, send)
        if request is None:
            return
        answered = Answered[MemoryState]()
        self._engine.resize(request, answered.answer)
        await _send_answer(send, await answered.future)

    async def _read(self, kind: type[T], receive: Receive, send: Send) -> T | None:
        """The body as a wire message; None when the client left or was refused here."""
        try:
            body = await _read_body(receive)
            if body is None:
                return None
            request = decode(kind, body)
        except ProtocolError as error:
            await _send_error(send, 400, "bad_request", str(error))
            return None
        except RequestError as error:
            await _send_error(send, 413, error.code, error.message)
            return None
        if self._not_ready() is not None:
            await _send_error(send, 503, *self._not_ready_event())
            return None
        return request


class Answered(Generic[T]):
    """One answer on its way from the engine thread to the event loop it is made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T | ErrorEvent] = self._loop.create_future()

    def answer(self, found: T | ErrorEvent) -> None:
        """On the engine thread."""
        # a closed loop: the process is ending and nobody waits any more
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, found)

    def _take(self, found: T | ErrorEvent) -> None:
        if not self.future.done():
            self.future.set_result(found)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_answer(send: Send, found: object) -> None:
    status = status_of(found.code) if isinstance(found, ErrorEvent) else 200
    await _send(send, status, encode(found))


async def _read_body(receive: Receive) -> bytes | None:
    """The whole body; None when the client left. Raises: RequestError above the line limit."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LINE_LIMIT_BYTES:
            raise RequestError(
                f"the request is larger than {LINE_LIMIT_BYTES} bytes; send fewer tokens",
                code="too_large",
            )
        if not message.get("more_body", False):
            return b"".join(parts)


async def _send_error(
    send: Send, status: int, code: str, message: str, retryable: bool = False
) -> None:
    await _send(send, status or status_of(code), encode(ErrorEvent(code, message, retryable)))


async def _send(
    send: Send, status: int, body: bytes, content_type: bytes = b"application/json"
) -> None:
    headers = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
