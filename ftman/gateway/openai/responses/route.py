"""/v1/responses and what hangs below it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from ftman.chat.types import ChatEvent
from ftman.gateway.body import FieldError
from ftman.gateway.errors import to_json
from ftman.gateway.openai.responses.request import ResponseRequest, parse_request
from ftman.gateway.openai.responses.store import Item, Stored, store_of
from ftman.gateway.openai.responses.writer import Event, Writer, frame
from ftman.gateway.routes import Call, Reply, StreamReply
from ftman.gateway.stream import SSE, SSE_HEADERS
from ftman.names import printable
from ftman.service.prompts import ContextLengthError

log = logging.getLogger(__name__)

MAX_LISTED = 100


async def create_response(call: Call) -> Reply | StreamReply:
    """POST /v1/responses: one answer, in one piece or as events."""
    request = parse_request(call)
    writer = Writer(request, call.service.clock)
    if request.stream:
        return StreamReply(
            _frames(call, request, writer),
            SSE,
            on_error=lambda error: _joined(writer.fail(error)),
            heartbeat=lambda: _joined(writer.heartbeat()),
            headers=SSE_HEADERS,
        )
    async with contextlib.aclosing(_events(call, request)) as events:
        async for event in events:
            writer.feed(event)
    _remember(call, request, writer)
    return _reply(writer.response)


async def count_input(call: Call) -> Reply:
    """POST /v1/responses/input_tokens: how long the prompt of such a request is."""
    request = parse_request(call)
    prompt = await call.service.tokens.prompt(request.chat)
    return _reply({"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)})


async def get_response(call: Call) -> Reply:
    """GET /v1/responses/:id and /v1/responses/:id/input_items."""
    response_id, _, what = call.tail.partition("/")
    stored = store_of(call.service).get(response_id)
    if what == "input_items":
        return _reply(_listing(call, stored))
    _refuse_tail(call, what)
    if call.query.get("stream") == "true":
        raise FieldError("a stored response cannot be streamed again; leave stream out", "stream")
    return _reply(stored.value())


async def delete_response(call: Call) -> Reply:
    """DELETE /v1/responses/:id."""
    response_id, _, what = call.tail.partition("/")
    _refuse_tail(call, what)
    store_of(call.service).delete(response_id)
    return _reply({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(call: Call) -> Reply:
    """POST /v1/responses/:id/cancel: only background responses could be, and there are none."""
    response_id, _, what = call.tail.partition("/")
    if what != "cancel":
        _refuse_tail(call, what or response_id)
    store_of(call.service).get(response_id)
    raise FieldError(
        "only background responses can be cancelled; close the connection of this one instead"
    )


def _refuse_tail(call: Call, what: str) -> None:
    if what:
        text = f"there is no {call.method} {printable(call.path[:80])}"
        raise FieldError(text, status=404, code="not_found")


async def _frames(call: Call, request: ResponseRequest, writer: Writer) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(_events(call, request)) as events:
        async for event in events:
            told = writer.feed(event)
            if writer.response["status"] != "in_progress":
                _remember(call, request, writer)
            if told:
                yield _joined(told)


async def _events(call: Call, request: ResponseRequest) -> AsyncGenerator[ChatEvent, None]:
    """The generation's events; a prompt that is too long is named as this route names it."""
    try:
        async with contextlib.aclosing(call.service.chat(request.chat)) as events:
            async for event in events:
                yield event
    except ContextLengthError as error:
        counts = error.extra
        raise ContextLengthError(counts["n_prompt_tokens"], counts["n_ctx"], "input") from None


def _remember(call: Call, request: ResponseRequest, writer: Writer) -> None:
    usage = writer.response["usage"]
    if usage:
        call.tally.prompt_tokens = usage["input_tokens"]
        call.tally.completion_tokens = usage["output_tokens"]
    if not request.store:
        return
    if not store_of(call.service).put(writer.response, request.earlier, request.given):
        log.info("%s is too large to be stored", writer.response["id"])


def _listing(call: Call, stored: Stored) -> dict[str, Any]:
    """Input items, newest first unless `order` says otherwise."""
    items: list[Item] = stored.input_items()
    if call.query.get("order", "desc") != "asc":
        items.reverse()
    after = call.query.get("after", "")
    if after:
        places = [index for index, item in enumerate(items) if item.get("id") == after]
        if not places:
            raise FieldError(f"'after' names {after[:80]!r}, which is not in the list", "after")
        items = items[places[0] + 1 :]
    limit = call.query.get("limit", "20")
    if not limit.isdigit() or not 1 <= int(limit[:9]) <= MAX_LISTED:
        raise FieldError(f"'limit' must be 1 to {MAX_LISTED}, not {limit[:20]!r}", "limit")
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0].get("id") if page else None,
        "last_id": page[-1].get("id") if page else None,
        "has_more": len(items) > len(page),
    }


def _joined(events: list[Event]) -> bytes:
    return b"".join(frame(event) for event in events)


def _reply(value: dict[str, Any]) -> Reply:
    return Reply(to_json(value) + b"\n", media_type="application/json")
