"""Native routes that move models: pull, push, blobs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from ftman.catalog.manifest import normal_digest
from ftman.errors import FtmanError, NotFoundError
from ftman.gateway.body import OLLAMA_TEXTS, FieldError
from ftman.gateway.ollama.progress import progress_reply
from ftman.gateway.ollama.values import refuse_cloud, required_name
from ftman.gateway.routes import Call, Reply, Route, StreamReply
from ftman.names import is_valid_name
from ftman.pull.progress import Progress

_MISSING_UPSTREAM = "pull model manifest: file does not exist"
FIRST_STATUS = "pulling manifest"


async def pull(call: Call) -> Reply | StreamReply:
    """POST /api/pull. A name nobody knows is an error line inside a 200 stream."""
    fields = call.fields("PullRequest", OLLAMA_TEXTS)
    given = fields.text("model") or fields.text("name")
    stream, insecure = fields.flag("stream", True), fields.flag("insecure", False)
    keep_source = fields.flag("keep_source", False)
    if not is_valid_name(given) and not _is_place(given):
        raise FieldError("invalid model name", "model")
    refuse_cloud(given)
    call.tally.model = given
    return await progress_reply(_pull_steps(call, given, insecure, keep_source), stream)


async def head_blob(call: Call) -> Reply:
    """HEAD /api/blobs/:digest."""
    there = call.service.catalog.blobs.has(normal_digest(call.tail))
    return Reply(status=200 if there else 404, media_type="")


async def post_blob(call: Call) -> Reply:
    """POST /api/blobs/:digest: store an upload under its digest."""
    digest = normal_digest(call.tail)
    blobs = call.service.catalog.blobs
    if blobs.has(digest):
        return Reply(status=200, media_type="")
    assert call.chunks is not None
    await blobs.receive(call.tail, call.chunks)
    return Reply(status=201, media_type="")


async def push(call: Call) -> Reply | StreamReply:
    """POST /api/push: to the registry that the name's host is."""
    fields = call.fields("PushRequest", OLLAMA_TEXTS)
    given = required_name(fields)
    stream, insecure = fields.flag("stream", True), fields.flag("insecure", False)
    call.tally.model = given
    return await progress_reply(call.service.push(given, insecure), stream)


async def _pull_steps(
    call: Call, given: str, insecure: bool, keep_source: bool
) -> AsyncIterator[Progress]:
    yield Progress(FIRST_STATUS)
    steps = call.service.pull(given, insecure=insecure, keep_source=keep_source)
    try:
        async with contextlib.aclosing(steps):  # type: ignore[type-var]
            async for step in steps:
                if step.status != FIRST_STATUS:
                    yield step
    except NotFoundError as error:
        known = error.message == _MISSING_UPSTREAM
        told = error.hint if known else f"{error.message}. {error.hint}".strip()
        raise FtmanError(_MISSING_UPSTREAM, hint=told, code="not_found") from None


def _is_place(given: str) -> bool:
    """A folder, a file or a URL instead of a name; the pull decides what it is."""
    places = ("https://", "http://", "file://", "hf://", "ollama://", "ollama-store://")
    return given.startswith(places)


ROUTES = (
    Route("POST", "/api/pull", pull, body="whole"),
    Route("POST", "/api/push", push, body="whole"),
    Route("HEAD", "/api/blobs/*", head_blob),
    Route("POST", "/api/blobs/*", post_blob, body="stream"),
)
