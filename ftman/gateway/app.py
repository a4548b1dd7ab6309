"""The ASGI application: access rules, routing, bodies, replies, one log line per request.

Routes stand in the dialects' files; starting and stopping the server is serve.py's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from h11 import LocalProtocolError

from ftman import caller
from ftman.clock import SYSTEM, Clock
from ftman.config import Config
from ftman.errors import BusyError, FtmanError, UsageError, failure_of
from ftman.gateway import (
    anthropic,
    console,
    extras,
    health,
    metrics,
    ollama,
    openai,
    openapi,
    serve_process,
    tokens,
)
from ftman.gateway.access import PRIORITY_HEADER, AccessRules, rules_for
from ftman.gateway.body import MAX_BODY_BYTES, FieldError, too_large
from ftman.gateway.encoding import Decoder
from ftman.gateway.errors import OLLAMA, encode_error, headers_of, internal_error
from ftman.gateway.rights import right_of
from ftman.gateway.routes import Call, Reply, Route, Router
from ftman.gateway.spool import Spool
from ftman.gateway.stream import HEARTBEAT_S, Pump, Send, raw_headers
from ftman.gateway.traffic import Traffic
from ftman.keys import USE, KeyRing, key_of, keys_path
from ftman.log import request_id as logged_request_id
from ftman.memory import give_back
from ftman.names import printable
from ftman.supervisor.launcher import Launcher
from ftman.waits import result_within

if TYPE_CHECKING:
    from ftman.service import Service

log = logging.getLogger(__name__)

ROUTES: tuple[Route, ...] = openapi.with_document(
    (
        *ollama.ROUTES,
        *openai.ROUTES,
        *anthropic.ROUTES,
        *tokens.ROUTES,
        *health.ROUTES,
        *metrics.ROUTES,
        *extras.ROUTES,
        *console.ROUTES,
    )
)
BODY_CHUNK_TIMEOUT_S = 30.0
DRAIN_S = 2.0
STALLED = 408
LARGE_BODY_BYTES = 1 << 20
"""What a larger body was made into is given back to the system at once."""
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+/=-]{0,99}")
PRIORITIES = ("", "normal", "background")
MAX_BODIES_BYTES = 4 * MAX_BODY_BYTES
"""Bodies being received at one time, all requests together."""

Receive = Callable[[], Awaitable[dict[str, Any]]]


class ClientGoneError(Exception):
    """The client closed the connection before its answer was complete."""


@dataclass
class _Outcome:
    """What became of a request, for its log line."""

    status: int = 0
    note: str = ""
    route: str = ""
    body_bytes: int = 0


class Gateway:
    """ASGI application over one Service."""

    def __init__(
        self,
        service: Service,
        rules: AccessRules,
        *,
        clock: Clock = SYSTEM,
        heartbeat_s: float = HEARTBEAT_S,
        routes: tuple[Route, ...] = ROUTES,
    ):
        self._service = service
        self._rules = rules
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._router = Router(routes)
        self._traffic = Traffic()
        self._pumps: set[Pump] = set()
        self._under_way: set[str] = set()
        self._bodies_bytes = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request. Only HTTP reaches this point."""
        if scope["type"] != "http":
            return
        started_s = self._clock.monotonic()
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        request_id = self._id_for(headers.get("x-request-id", ""))
        call = Call(
            self._service,
            scope["method"],
            scope["path"],
            "",
            dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            headers,
            request_id,
            traffic=self._traffic,
        )
        outcome = _Outcome()
        self._under_way.add(request_id)
        self._traffic.under_way += 1
        logged_request_id.set(request_id)
        try:
            await self._answer(call, receive, send, outcome)
        except ClientGoneError:
            outcome.status, outcome.note = 499, " client gone"
        except LocalProtocolError:
            # The rest of the request was not HTTP: the server has answered 400 and closed already.
            outcome.status, outcome.note = 400, " broken request"
        finally:
            self._under_way.discard(request_id)
            self._traffic.under_way -= 1
            spent_s = self._clock.monotonic() - started_s
            self._traffic.ended(call.method, outcome.route, outcome.status, spent_s)
            self._log(call, outcome, spent_s)
            if outcome.body_bytes > LARGE_BODY_BYTES:
                asyncio.get_running_loop().call_soon(give_back)

    def _id_for(self, given: str) -> str:
        """The id of a new request: the client's own where it can be used, else one of ours.

        Engines tell requests apart by it, so one that is under way is not given twice.
        """
        if not _PLAIN_ID.fullmatch(given):
            return "req_" + secrets.token_hex(8)
        return f"{given}.{secrets.token_hex(4)}" if given in self._under_way else given

    def under_way(self) -> list[str]:
        """Ids of the requests that are being answered."""
        return sorted(self._under_way)

    def cut(self) -> None:
        """End every running stream with a typed error; the last step of a shutdown."""
        for pump in tuple(self._pumps):
            pump.cut(BusyError("the manager is shutting down; try again when it is back"))

    async def _answer(self, call: Call, receive: Receive, send: Send, outcome: _Outcome) -> None:
        ids = (("x-request-id", call.request_id), ("request-id", call.request_id))
        head = (*ids, *self._rules.cors_headers(call.headers))
        dialect = _dialect_of(call)
        try:
            refused = self._rules.refuse(call.method, call.headers)
            if refused is not None:
                await _send_reply(send, refused, call, head, outcome)
                return
            route = self._route(call)
            outcome.route = route.path if isinstance(route, Route) else ""
            right = right_of(outcome.route) if outcome.route else USE
            key = self._rules.admit(right, call.headers)
            caller.salt.set(caller.salt_of(key.sha256 if key is not None else ""))
            caller.background.set(_is_background(call))
            if isinstance(route, Reply):
                await _send_reply(send, route, call, head, outcome)
                return
            dialect = anthropic.dialect_of(call.path, call.headers) or route.dialect
            call = replace(call, tail=self._router.at(call.path)[1])
            await self._run(route, call, receive, send, head, outcome)
        except FtmanError as error:
            await _send_reply(send, _error_reply(error, dialect, call), call, head, outcome)
        except ClientGoneError:
            raise
        except Exception as error:  # the root of a request
            told = failure_of(error)
            if told is None:
                log.exception("request %s failed", call.request_id)
            else:
                log.error("request %s failed: %s", call.request_id, told.message)
            ours = _error_reply(told or internal_error(), dialect, call)
            await _send_reply(send, ours, call, head, outcome)

    def _route(self, call: Call) -> Route | Reply:
        found, _ = self._router.at(call.path)
        if not found and call.path.endswith("/"):
            bare, _ = self._router.at(call.path.rstrip("/"))
            if bare:
                status = 301 if call.method == "GET" else 307
                query = f"?{urlencode(call.query)}" if call.query else ""
                location = (("location", call.path.rstrip("/") + query),)
                return Reply(b"", status, "", location)
        if not found:
            return _plain_or_json(call, 404, "page not found")
        route = found.get(call.method)
        if route is None:
            allow = (("allow", ", ".join(sorted(found))),)
            return replace(_plain_or_json(call, 405, "method not allowed"), headers=allow)
        return route

    async def _run(
        self,
        route: Route,
        call: Call,
        receive: Receive,
        send: Send,
        head: tuple[tuple[str, str], ...],
        outcome: _Outcome,
    ) -> None:
        if "transfer-encoding" in call.headers and "content-length" in call.headers:
            # A proxy in front may read the length where we read the chunks: two requests in one.
            raise UsageError("a request may have Content-Length or Transfer-Encoding, not both")
        if route.body == "stream":
            call = replace(call, chunks=_chunks(receive))
            reply = await route.handler(call)
            assert isinstance(reply, Reply)
            await _send_reply(send, reply, call, head, outcome)
            return
        if route.body == "whole":
            call = replace(call, body=await self._body(call, receive))
            outcome.body_bytes = len(call.body)
        work = asyncio.ensure_future(self._reply(route, call, send, head, outcome))
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
                if work.cancelled():
                    raise ClientGoneError
            work.result()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _reply(
        self,
        route: Route,
        call: Call,
        send: Send,
        head: tuple[tuple[str, str], ...],
        outcome: _Outcome,
    ) -> None:
        reply = await route.handler(call)
        if isinstance(reply, Reply):
            await _send_reply(send, reply, call, head, outcome)
            return
        pump = Pump(reply, self._heartbeat_s)
        self._pumps.add(pump)
        try:
            await pump.run(send, head)
            outcome.status = 200
            if pump.failed is not None:
                outcome.note = f" failed: {pump.failed.code}: {printable(pump.failed.message)}"
        finally:
            self._pumps.discard(pump)

    async def _body(self, call: Call, receive: Receive) -> bytes:
        announced = call.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
            await _discard(receive, self._clock)
            raise too_large(MAX_BODY_BYTES)
        spool = Spool(MAX_BODY_BYTES)
        try:
            await self._collect(call, receive, spool)
            return spool.take()
        except FieldError as error:
            if error.status != STALLED:
                await _discard(receive, self._clock)
            raise
        finally:
            spool.close()
            self._bodies_bytes -= spool.size

    async def _collect(self, call: Call, receive: Receive, spool: Spool) -> None:
        """The body, decoded as it arrives.   Raises: FieldError, BusyError, ClientGoneError."""
        decoder = Decoder(call.headers.get("content-encoding", ""), MAX_BODY_BYTES)
        async for chunk in _chunks(receive):
            for piece in decoder.feed(chunk):
                self._bodies_bytes += len(piece)
                spool.write(piece)
                if self._bodies_bytes > MAX_BODIES_BYTES:
                    raise BusyError("too many large requests at once; try again shortly")
        decoder.finish()

    def _log(self, call: Call, outcome: _Outcome, seconds: float) -> None:
        tally = call.tally
        counts = ""
        if tally.model:
            counts = f" {printable(tally.model)}"
        if tally.completion_tokens or tally.prompt_tokens:
            counts += f" {tally.prompt_tokens}+{tally.completion_tokens} tokens"
        log.info(
            "%s %s %d%s %.3f s%s",
            call.method,
            printable(call.path),
            outcome.status,
            counts,
            seconds,
            outcome.note,
        )


def serve(
    config: Config, *, insecure_no_key: bool = False, launcher: Launcher | None = None
) -> int:
    """Run the manager until it is told to stop; returns the process's exit code.

    launcher None = the real engine.   Raises: FtmanError when it cannot start.
    """
    token = secrets.token_urlsafe(32)
    rules = rules_for(
        config.host,
        config.origins,
        KeyRing(keys_path(config.paths)),
        insecure_no_key=insecure_no_key,
        hosts=config.hosts,
        own=(key_of(token, "command line"),),
    )
    return serve_process.serve(config, lambda service: Gateway(service, rules), launcher, token)


def _is_background(call: Call) -> bool:
    """Whether the request wants to give way.   Raises: UsageError for a word that means nothing."""
    wish = call.headers.get(PRIORITY_HEADER.lower(), "").strip().lower()
    if wish not in PRIORITIES:
        raise UsageError(
            f"{PRIORITY_HEADER}: {printable(wish[:40])!r} is no priority",
            hint=f"It is one of: {', '.join(filter(None, PRIORITIES))}.",
        )
    return wish == "background"


def _dialect_of(call: Call) -> str:
    path = call.path
    return anthropic.dialect_of(path, call.headers) or openai.dialect_of(path) or OLLAMA


def _plain_or_json(call: Call, status: int, text: str) -> Reply:
    dialect = _dialect_of(call)
    if dialect == OLLAMA:
        return Reply(f"{status} {text}".encode(), status, "text/plain")
    told = f"{status} {text}: {call.method} {printable(call.path)}"
    error = FtmanError(told, status=status, code="not_found" if status == 404 else "wrong_method")
    return _error_reply(error, dialect, call)


def _error_reply(error: FtmanError, dialect: str, call: Call) -> Reply:
    body = encode_error(dialect, error, call.request_id)
    newline = b"" if dialect == OLLAMA else b"\n"
    return Reply(body + newline, error.status, "application/json", headers_of(error))


async def _send_reply(
    send: Send,
    reply: Reply,
    call: Call,
    head: tuple[tuple[str, str], ...],
    outcome: _Outcome,
) -> None:
    outcome.status = reply.status
    headers = [*reply.headers, *head]
    if reply.media_type:
        headers.insert(0, ("content-type", reply.media_type))
    if reply.status != 204:
        headers.append(("content-length", str(len(reply.body))))
    body = b"" if call.method == "HEAD" else reply.body
    start = {"type": "http.response.start", "status": reply.status, "headers": raw_headers(headers)}
    with contextlib.suppress(OSError):
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _chunks(receive: Receive, limit_s: float = 0.0) -> AsyncIterator[bytes]:
    """The body as it arrives.   Raises: ClientGoneError; FieldError 408 for a stalled sender."""
    limit_s = limit_s or BODY_CHUNK_TIMEOUT_S
    more = True
    while more:
        try:
            message = await result_within(receive(), limit_s)
        except asyncio.TimeoutError:
            raise FieldError(
                f"no byte of the request body arrived for {limit_s:.0f} s", status=STALLED
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        if message.get("body"):
            yield message["body"]
        more = message.get("more_body", False)


async def _discard(receive: Receive, clock: Clock) -> None:
    """Read on for a moment, so that the client sees the refusal instead of a reset.

    The end is looked for between chunks: a fast sender never makes one of them late.
    """
    until_s = clock.monotonic() + DRAIN_S
    with contextlib.suppress(ClientGoneError, FieldError):
        async for _ in _chunks(receive, DRAIN_S):
            if clock.monotonic() >= until_s:
                return


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
