"""The web console: its files at /ui, and the routes that only a page which stays open needs.

The files lie in ftman/ui; everything else that they ask for are routes of other clients too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path

import ftman
from ftman import files
from ftman.errors import NotFoundError, UsageError
from ftman.gateway import extras
from ftman.gateway.errors import OLLAMA, encode_error, to_json
from ftman.gateway.ollama.models import ps
from ftman.gateway.routes import Call, Reply, Route, StreamReply
from ftman.gateway.stream import NDJSON
from ftman.names import printable
from ftman.service.logs import LogTail, list_logs

FOLDER = Path(ftman.__file__).parent / "ui"
PAGE = "index.html"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-cache"),
)
WATCH_S = 1.0
TAIL_S = 0.3
LINES = 500
MAX_LINES = 10_000


async def page(call: Call) -> Reply:
    """GET /ui: the web console."""
    return await _file(PAGE)


async def part(call: Call) -> Reply:
    """GET /ui/:file: a file of the web console."""
    return await _file(call.tail)


async def _file(name: str) -> Reply:
    known = await asyncio.to_thread(lambda: {path.name: path for path in FOLDER.iterdir()})
    path = known.get(name)
    if path is None or path.suffix not in MEDIA_TYPES:
        raise NotFoundError(f"the web console has no file {printable(name)!r}", hint="See: /ui")
    data = await asyncio.to_thread(files.read_bytes, path)
    return Reply(data, media_type=MEDIA_TYPES[path.suffix], headers=HEADERS)


async def watch(call: Call) -> StreamReply:
    """GET /api/ft/watch: what is loaded, its experts, the queue and pulls in one line.

    The values are those of /api/ps, /api/ft/experts and /api/ft/queue; ?follow=1 sends them anew
    every second.
    """
    return StreamReply(
        _states(call, _follow(call)),
        NDJSON,
        on_error=lambda error: encode_error(OLLAMA, error) + b"\n",
    )


async def _states(call: Call, follow: bool) -> AsyncIterator[bytes]:
    service = call.service
    while True:
        pulls = to_json([asdict(job) for job in service.jobs() if job.state == "running"])
        asked = [await handler(call) for handler in (ps, extras.experts, extras.queue)]
        bodies = (*(reply.body for reply in asked), pulls)
        yield b'{"ps":%b,"experts":%b,"queue":%b,"jobs":%b}\n' % bodies
        if not follow or service.stopping:
            return
        await service.clock.sleep(WATCH_S)


async def logs(call: Call) -> Reply:
    """GET /api/ft/logs: the logs there are."""
    folder = call.service.config.paths.logs
    found = await asyncio.to_thread(list_logs, folder)
    return Reply(to_json({"folder": str(folder), "logs": [asdict(log) for log in found]}))


async def log(call: Call) -> StreamReply:
    """GET /api/ft/logs/:name: the end of one log, ?lines=500 of it; ?follow=1 goes on."""
    tail = LogTail(call.service.config.paths.logs, call.tail, _lines(call))
    return StreamReply(
        _pieces(call, tail, _follow(call)),
        "text/plain; charset=utf-8",
        on_error=lambda error: f"\n[{error.message}]\n".encode(),
        headers=(("x-content-type-options", "nosniff"), ("cache-control", "no-store")),
    )


async def _pieces(call: Call, tail: LogTail, follow: bool) -> AsyncIterator[bytes]:
    yield await asyncio.to_thread(tail.read)  # an empty one too: it sends the headers
    while follow and not call.service.stopping:
        data = await asyncio.to_thread(tail.read)
        if data:
            yield data
        else:
            await call.service.clock.sleep(TAIL_S)


def _follow(call: Call) -> bool:
    text = call.query.get("follow", "0")
    if text not in ("0", "1"):
        raise UsageError(f"follow must be 0 or 1, got {printable(text)!r}")
    return text == "1"


def _lines(call: Call) -> int:
    text = call.query.get("lines", str(LINES))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) <= MAX_LINES):
        raise UsageError(f"lines must be 0 to {MAX_LINES}, got {printable(text)!r}")
    return int(text)


ROUTES = (
    Route("GET", "/ui", page),
    Route("HEAD", "/ui", page),
    Route("GET", "/ui/*", part),
    Route("HEAD", "/ui/*", part),
    Route("GET", "/api/ft/watch", watch),
    Route("GET", "/api/ft/logs", logs),
    Route("GET", "/api/ft/logs/*", log),
)
