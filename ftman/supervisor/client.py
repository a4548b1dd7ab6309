"""Typed client of one engine: the only file of the manager that knows the wire protocol.

Ids in, events out. Whatever the engine does wrong ends in one error of our tree, with the cause
its process died of when it did.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TypeVar

import httpx

from ftengine.protocol import (
    LINE_LIMIT_BYTES,
    POOLINGS,
    PROTOCOL_VERSION,
    CacheStats,
    Constraint,
    EmbedReply,
    EmbedRequest,
    EngineInfo,
    ErrorEvent,
    Event,
    ExpertStats,
    FinishEvent,
    GenerateRequest,
    Health,
    Hello,
    MemoryRequest,
    MemoryState,
    ProgressEvent,
    ProtocolError,
    Sampling,
    TokenEvent,
    TokenLogprob,
    decode,
    decode_event,
    encode,
)
from ftman.errors import BusyError, CannotFitError, EngineDiedError, FtmanError, UsageError
from ftman.supervisor.stream import Address, post

__all__ = [
    "LINE_LIMIT_BYTES",
    "POOLINGS",
    "CacheStats",
    "Constraint",
    "EmbedReply",
    "EmbedRequest",
    "EngineClient",
    "EngineInfo",
    "ErrorEvent",
    "Event",
    "ExpertStats",
    "FinishEvent",
    "GenerateRequest",
    "Health",
    "Hello",
    "MemoryRequest",
    "MemoryState",
    "ProgressEvent",
    "Sampling",
    "TokenEvent",
    "TokenLogprob",
    "parse_hello",
    "check_model",
    "check_protocol",
    "warm_up",
]

ANSWER_LIMIT_BYTES = 4_000_000
MEMORY_TIMEOUT_S = 120.0
"""A resize waits for the running step, and may copy gigabytes."""
CONNECT_TIMEOUT_S = 5.0
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""All of it is plain HTTP; reading the system's certificates would take longer than connecting."""

T = TypeVar("T")


async def warm_up() -> None:
    """Have httpx import what it imports with its first request: longer than some models load."""
    if os.name != "posix":  # sockets of the kind that is used here
        return
    transport = httpx.AsyncHTTPTransport(uds=os.devnull, verify=_NO_TLS)
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        with suppress(httpx.HTTPError):  # nobody listens there
            await client.get("http://engine/")


def parse_hello(line: bytes, name: str) -> Hello:
    """Read the line an engine prints when it listens.   Raises: EngineDiedError."""
    try:
        hello = decode(Hello, line)
    except ProtocolError as error:
        raise _violation(name, f"its first line is not a greeting ({error})") from None
    check_protocol(hello.protocol, name)
    return hello


def check_protocol(version: tuple[int, int], name: str) -> None:
    """Refuse an engine of another major version, and one too old to know every field.

    An engine that does not know a field ignores it, and what it was asked for would not be done.
    Raises: EngineDiedError.
    """
    major, minor = PROTOCOL_VERSION
    if version[0] != major or version[1] < minor:
        raise _violation(
            name,
            f"it speaks protocol {version[0]}.{version[1]}, this manager speaks {major}.{minor} "
            f"and later of {major}.x; install matching versions of ftman and ftengine",
        )


def check_model(info: EngineInfo, key: str, name: str) -> None:
    """Refuse an engine that has loaded other files than it was given.   Raises: EngineDiedError."""
    if info.ftw_id != key:
        raise _violation(
            name,
            f"it has loaded {info.ftw_id[:12]}, not {key[:12]}; whether files have changed is "
            f"told by: ft verify {name}",
        )


class EngineClient:
    """Talks to one engine over its socket, with one connection pool.

    cause: waits a moment for the process to be known dead and returns why, None if it lives.
    condemn: told when the engine broke the protocol, so that it is replaced.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        name: str,
        cause: Callable[[], Awaitable[FtmanError | None]],
        condemn: Callable[[FtmanError], None],
    ):
        self.last_token_s: float | None = None
        """Monotonic seconds at which the last token was read from it; its reader keeps this."""
        self._name = name
        self._cause = cause
        self._condemn = condemn
        self._address = Address.parse(address)
        self._token = token
        kind, _, place = address.partition(":")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=4)
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=place if kind == "unix" else None, limits=limits, verify=_NO_TLS
            ),
            base_url=f"http://{place}" if kind == "tcp" else "http://engine",
            headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

    async def health(self, timeout_s: float = CONNECT_TIMEOUT_S) -> Health:
        """GET /health.   Raises: EngineDiedError; code engine_silent when there is no answer."""
        return await self._get(Health, "/health", (200, 503), timeout_s)

    async def info(self, timeout_s: float = CONNECT_TIMEOUT_S) -> EngineInfo:
        """GET /info, protocol version checked.   Raises: EngineDiedError."""
        info = await self._get(EngineInfo, "/info", (200,), timeout_s)
        check_protocol(info.protocol, self._name)
        return info

    async def metrics(self, timeout_s: float = CONNECT_TIMEOUT_S) -> str:
        """GET /metrics: Prometheus text.   Raises: EngineDiedError."""
        status, body = await self._fetch("/metrics", timeout_s)
        if status != 200:
            raise _violation(self._name, f"/metrics answered with status {status}")
        return body.decode("utf-8", "replace")

    async def memory(self, request: MemoryRequest) -> MemoryState:
        """POST /memory: divide the engine's memory anew between two steps.

        Raises: CannotFitError with the engine's numbers; UsageError; EngineDiedError.
        """
        return await self._post(MemoryState, "/memory", request, MEMORY_TIMEOUT_S)

    async def embed(self, request: EmbedRequest) -> EmbedReply:
        """POST /embed: one vector for each input. Cancelling it aborts it in the engine.

        Raises: UsageError (code context_length_exceeded), BusyError, FtmanError; EngineDiedError.
        """
        reply = await self._post(EmbedReply, "/embed", request, None, LINE_LIMIT_BYTES)
        if len(reply.vectors) != len(request.inputs):
            raise self._broke_protocol(
                f"/embed: {len(reply.vectors)} vectors for {len(request.inputs)} inputs"
            )
        return reply

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Event]:
        """POST /generate: yield events up to and including FinishEvent.

        Closing the iterator closes the connection, which aborts the request in the engine. Errors
        the engine reports, before the stream or in it, are raised, never yielded.
        Raises: FtmanError; EngineDiedError when the engine died or broke the protocol.
        """
        try:
            async with post(
                self._address, self._token, "/generate", encode(request), CONNECT_TIMEOUT_S
            ) as reply:
                if reply.status != 200:
                    body = await reply.body(ANSWER_LIMIT_BYTES)
                    raise self._refused("/generate", reply.status, body)
                async with aclosing(reply.lines()) as lines:
                    async for line in lines:
                        event = _parse_event(line)
                        if isinstance(event, ErrorEvent):
                            raise self._reported(event, 500)
                        yield event
                        if isinstance(event, FinishEvent):
                            return
        except ProtocolError as error:
            # What is cut off was cut off by a death, if there was one.
            raise await self._cause() or self._broke_protocol(str(error)) from None
        except OSError as error:
            raise await self._lost(error) from None
        # The stream ended without its last line: dead, or lying.
        raise await self._cause() or self._broke_protocol("the stream ended without a last event")

    async def aclose(self) -> None:
        """Close every connection; requests under way are aborted."""
        await self._http.aclose()

    async def _post(
        self,
        kind: type[T],
        path: str,
        request: object,
        timeout_s: float | None,
        limit_bytes: int = ANSWER_LIMIT_BYTES,
    ) -> T:
        """One request that has one answer."""
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            async with self._http.stream(
                "POST", path, content=encode(request), timeout=timeout
            ) as response:
                status = response.status_code
                body = await self._read_limited(response, limit_bytes)
        except ProtocolError as error:
            raise self._broke_protocol(f"{path}: {error}") from None
        except httpx.HTTPError as error:
            raise await self._lost(error) from None
        if status != 200:
            raise self._refused(path, status, body)
        try:
            return decode(kind, body)
        except ProtocolError as error:
            raise self._broke_protocol(f"{path}: {error}") from None

    async def _get(self, kind: type[T], path: str, allowed: tuple[int, ...], timeout_s: float) -> T:
        status, body = await self._fetch(path, timeout_s)
        if status not in allowed:
            raise _violation(self._name, f"{path} answered with status {status}")
        try:
            return decode(kind, body)
        except ProtocolError as error:
            raise _violation(self._name, f"{path}: {error}") from None

    async def _fetch(self, path: str, timeout_s: float) -> tuple[int, bytes]:
        try:
            async with self._http.stream("GET", path, timeout=timeout_s) as response:
                return response.status_code, await self._read_limited(response)
        except ProtocolError as error:
            raise _violation(self._name, f"{path}: {error}") from None
        except (httpx.RemoteProtocolError, httpx.DecodingError) as error:
            raise _violation(self._name, f"{path}: {error}") from None
        except httpx.HTTPError as error:
            raise EngineDiedError(
                f"the engine of {self._name} does not answer: {type(error).__name__}",
                code="engine_silent",
            ) from None

    async def _read_limited(
        self, response: httpx.Response, limit_bytes: int = ANSWER_LIMIT_BYTES
    ) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > limit_bytes:
                raise ProtocolError(f"an answer is longer than {limit_bytes} bytes")
        return bytes(body)

    def _refused(self, path: str, status: int, body: bytes) -> FtmanError:
        try:
            event = decode(ErrorEvent, body)
        except ProtocolError:
            return self._broke_protocol(f"{path} answered with status {status} and no error")
        if event.code == "loading":
            # Nobody has a client of an engine that has not said that it is ready.
            return self._broke_protocol(f"{path}: it said that it is ready, now {event.message}")
        return self._reported(event, status)

    def _reported(self, event: ErrorEvent, status: int) -> FtmanError:
        """Map an error that a working engine reported to our tree."""
        if status == 503:
            return BusyError(event.message, code=event.code)
        if event.code in ("capacity", "device_memory"):
            return CannotFitError(event.message, code=event.code)
        if status in (400, 413) or event.code == "bad_request":
            return UsageError(event.message, code=event.code, status=max(400, min(status, 413)))
        hint = "Send the request again." if event.retryable else ""
        return FtmanError(event.message, hint=hint, code=event.code)

    def _broke_protocol(self, reason: str) -> EngineDiedError:
        error = _violation(self._name, reason)
        self._condemn(error)
        return error

    async def _lost(self, error: httpx.HTTPError | OSError) -> FtmanError:
        """Why a connection broke: the death of the process, else a fault of the protocol."""
        cause = await self._cause()
        if cause is not None:
            return cause
        if isinstance(error, httpx.RemoteProtocolError | httpx.DecodingError):
            return self._broke_protocol(str(error) or type(error).__name__)
        return EngineDiedError(
            f"the connection to the engine of {self._name} broke: {error or type(error).__name__}",
            hint="Send the request again.",
            code="engine_connection",
        )


def _parse_event(line: bytes) -> Event:
    """decode_event with a short way for the one event that comes per token."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON object: {error}") from None
    if type(value) is dict and value.get("type") == "token" and not value.get("logprobs"):
        ids = value.get("token_ids")
        if type(ids) is list and all(type(item) is int for item in ids):
            return TokenEvent(tuple(ids))
    return decode_event(line)


def _violation(name: str, reason: str) -> EngineDiedError:
    return EngineDiedError(
        f"the engine of {name} broke its protocol: {reason}",
        hint="The engine is replaced; send the request again.",
        code="engine_protocol",
    )
