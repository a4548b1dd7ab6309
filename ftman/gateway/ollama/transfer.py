"""Native routes that move or build models: pull, create, blobs, push."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from ftman.catalog.manifest import normal_digest
from ftman.catalog.model import ModelChanges
from ftman.chat.types import Message
from ftman.errors import FtmanError, NotFoundError
from ftman.gateway.body import OLLAMA_TEXTS, FieldError, Fields
from ftman.gateway.errors import OLLAMA, encode_error, to_json
from ftman.gateway.ollama.values import not_built, refuse_cloud, required_name
from ftman.gateway.routes import Call, Reply, Route, StreamReply
from ftman.gateway.stream import NDJSON, ndjson
from ftman.names import is_valid_name
from ftman.pull.progress import Progress
from ftman.service.requests import CreateRequest

_MISSING_UPSTREAM = "pull model manifest: file does not exist"
FIRST_STATUS = "pulling manifest"


async def pull(call: Call) -> Reply | StreamReply:
    """POST /api/pull. A name nobody knows is an error line inside a 200 stream."""
    fields = call.fields("PullRequest", OLLAMA_TEXTS)
    given = fields.text("model") or fields.text("name")
    stream, insecure = fields.flag("stream", True), fields.flag("insecure", False)
    if not is_valid_name(given) and not _is_place(given):
        raise FieldError("invalid model name", "model")
    refuse_cloud(given)
    call.tally.model = given
    return await _progress(_pull_steps(call, given, insecure), stream)


async def create(call: Call) -> Reply | StreamReply:
    """POST /api/create."""
    fields = call.fields("CreateRequest", OLLAMA_TEXTS)
    given = fields.text("model") or fields.text("name")
    stream = fields.flag("stream", True)
    request = CreateRequest(
        name=given,
        from_=fields.text("from"),
        files=_string_map(fields, "files"),
        changes=_changes(fields),
        quantize=fields.text("quantize") or fields.text("quantization"),
        adapters=_string_map(fields, "adapters"),
        draft_files=_string_map(fields, "draft_files"),
    )
    if not is_valid_name(given):
        raise FieldError("invalid model name", "model")
    call.tally.model = given
    return await _progress(call.service.create(request), stream)


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


async def push(call: Call) -> Reply:
    """POST /api/push."""
    required_name(call.fields("PushRequest", OLLAMA_TEXTS))
    not_built("pushing a model to a registry")


async def _pull_steps(call: Call, given: str, insecure: bool) -> AsyncIterator[Progress]:
    yield Progress(FIRST_STATUS)
    steps = call.service.pull(given, insecure=insecure)
    try:
        async with contextlib.aclosing(steps):  # type: ignore[type-var]
            async for step in steps:
                if step.status != FIRST_STATUS:
                    yield step
    except NotFoundError as error:
        known = error.message == _MISSING_UPSTREAM
        told = error.hint if known else f"{error.message}. {error.hint}".strip()
        raise FtmanError(_MISSING_UPSTREAM, hint=told, code="not_found") from None


async def _progress(steps: AsyncIterator[Progress], stream: bool) -> Reply | StreamReply:
    if stream:
        lines = _Lines(steps)
        return StreamReply(
            lines.pieces(),
            NDJSON,
            on_error=lambda error: encode_error(OLLAMA, error) + b"\n",
            heartbeat=lambda: lines.last,
        )
    last: dict[str, Any] = {}
    async with contextlib.aclosing(steps):  # type: ignore[type-var]
        async for step in steps:
            last = progress_value(step)
    return Reply(to_json(last), media_type="application/json")


class _Lines:
    """Progress as NDJSON; the last line is kept, to be said again as a sign of life."""

    def __init__(self, steps: AsyncIterator[Progress]):
        self._steps = steps
        self.last = b""

    async def pieces(self) -> AsyncIterator[bytes]:
        """The lines."""
        async with contextlib.aclosing(self._steps) as steps:  # type: ignore[type-var]
            async for step in steps:
                self.last = ndjson(progress_value(step))
                yield self.last


def progress_value(step: Progress) -> dict[str, Any]:
    """One progress object; zero numbers and empty texts are left out."""
    value: dict[str, Any] = {"status": step.status}
    if step.digest:
        value["digest"] = step.digest
    if step.total:
        value["total"] = step.total
    if step.completed:
        value["completed"] = step.completed
    return value


def _changes(fields: Fields) -> ModelChanges:
    licenses = fields.get("license")
    if isinstance(licenses, str):
        licenses = [licenses] if licenses else []
    elif licenses is not None:
        licenses = list(fields.strings("license"))
    messages = tuple(
        Message(item.text("role").lower(), item.text("content"))
        for item in fields.objects("messages", "CreateRequest.messages")
    )
    return ModelChanges(
        template=fields.text("template") or None,
        system=fields.text("system") or None,
        parameters=fields.mapping("parameters") or None,
        licenses_added=tuple(licenses or ()),
        messages=messages or None,
        renderer=fields.text("renderer") or None,
        parser=fields.text("parser") or None,
        requires=fields.text("requires") or None,
    )


def _string_map(fields: Fields, name: str) -> dict[str, str]:
    values = fields.mapping(name)
    for value in values.values():
        if not isinstance(value, str):
            fields.wrong(name, "string", value)
    return values


def _is_place(given: str) -> bool:
    """A folder, a file or a URL instead of a name; the pull decides what it is."""
    return given.startswith(("https://", "http://", "file://", "hf://"))


ROUTES = (
    Route("POST", "/api/pull", pull, body="whole"),
    Route("POST", "/api/create", create, body="whole"),
    Route("POST", "/api/push", push, body="whole"),
    Route("HEAD", "/api/blobs/*", head_blob),
    Route("POST", "/api/blobs/*", post_blob, body="stream"),
)
