"""What a route is and how a path finds one; the tables themselves stand in the dialects.

Paths match exactly; a route whose path ends in "*" takes the rest of the path as `tail`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftman.errors import FtmanError
from ftman.gateway.body import Fields, Texts, read_fields
from ftman.gateway.errors import OLLAMA
from ftman.gateway.traffic import Traffic

if TYPE_CHECKING:
    from ftman.service import Service


@dataclass
class Tally:
    """What the one log line of a request says beside method, path and status."""

    model: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class Call:
    """One request as a handler sees it. body: whole, already decompressed; chunks: streamed."""

    service: Service
    method: str
    path: str
    tail: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    request_id: str
    body: bytes = b""
    chunks: AsyncIterator[bytes] | None = None
    tally: Tally = field(default_factory=Tally)
    traffic: Traffic = field(default_factory=Traffic)

    def fields(self, kind: str, texts: Texts) -> Fields:
        """The body as fields.   Raises: FieldError."""
        return read_fields(self.body, kind, texts)


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    body: bytes = b""
    status: int = 200
    media_type: str = "application/json; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class StreamReply:
    """An answer in pieces; the first one is awaited before any status is sent.

    heartbeat: what to send after a silence (b"" = only the headers). on_error: the last piece of
    a stream that fails.
    """

    pieces: AsyncIterator[bytes]
    media_type: str
    on_error: Callable[[FtmanError], bytes]
    heartbeat: Callable[[], bytes] = bytes
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Call], Awaitable[Reply | StreamReply]]


@dataclass(frozen=True)
class Route:
    """One method and path. body: "none", "whole" or "stream"."""

    method: str
    path: str
    handler: Handler
    dialect: str = OLLAMA
    body: str = "none"


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: tuple[Route, ...]):
        self.routes = routes
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: dict[str, dict[str, Route]] = {}
        for route in routes:
            table = self._prefixes if route.path.endswith("*") else self._exact
            table.setdefault(route.path.rstrip("*"), {})[route.method] = route

    def at(self, path: str) -> tuple[dict[str, Route], str]:
        """The routes of a path by method, and the tail of it; empty when there is none."""
        found = self._exact.get(path)
        if found is not None:
            return found, ""
        for prefix, routes in self._prefixes.items():
            if path.startswith(prefix) and len(path) > len(prefix):
                return routes, path[len(prefix) :]
        return {}, ""
