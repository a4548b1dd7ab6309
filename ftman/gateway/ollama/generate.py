"""POST /api/generate and /api/chat: parse, refuse what cannot be, run. answer.py writes replies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from ftman.catalog.model import Model
from ftman.chat.types import ChatEvent, ChatRequest, CompletionRequest, Message, Tool
from ftman.gateway.body import OLLAMA_TEXTS, FieldError, Fields
from ftman.gateway.errors import to_json
from ftman.gateway.ollama.answer import Piece, Shape, streamed_answer, whole_answer
from ftman.gateway.ollama.images import has_images
from ftman.gateway.ollama.messages import parse_messages, parse_tools, require_names
from ftman.gateway.ollama.values import (
    Common,
    effective_think,
    find_model,
    parse_common,
    refuse_missing,
)
from ftman.gateway.routes import Call, Reply, Route, StreamReply


async def generate(call: Call) -> Reply | StreamReply:
    """POST /api/generate."""
    fields = call.fields("GenerateRequest", OLLAMA_TEXTS)
    given = fields.text("model")
    common = parse_common(fields)
    request = _completion(call, fields, given, common)
    with_images = has_images(fields)
    model = find_model(call, given)
    if request.raw and (request.template or request.system or request.context):
        raise FieldError("raw mode does not support template, system, or context")
    needs = [*(["insert"] if request.suffix else []), *(["vision"] if with_images else [])]
    refuse_missing(call, model, given, needs, common.think)
    shape = Shape(call, given, "response", keeps_context=not request.raw, notes=common.notes)
    if not request.prompt:
        return await _load_or_unload(shape, common)
    request = replace(request, think=effective_think(call, model, common.think))
    if common.render_only:
        return await _rendered(shape, request)
    return await _answer(shape, common, call.service.complete(request))


async def chat(call: Call) -> Reply | StreamReply:
    """POST /api/chat."""
    fields = call.fields("ChatRequest", OLLAMA_TEXTS)
    given = fields.text("model")
    common = parse_common(fields)
    messages, tools = parse_messages(fields), parse_tools(fields)
    with_images = any([has_images(item) for item in fields.objects("messages", "ChatRequest")])  # noqa: C419
    if not given:
        raise FieldError("model is required", "model")
    model = find_model(call, given)
    needs = [*(["tools"] if tools else []), *(["vision"] if with_images else [])]
    refuse_missing(call, model, given, needs, common.think)
    require_names(tools)
    shape = Shape(call, given, "message", notes=common.notes)
    if not messages:
        return await _load_or_unload(shape, common)
    request = _conversation(call, model, given, common, messages, tools)
    if common.render_only:
        return await _rendered(shape, request)
    return await _answer(shape, common, call.service.chat(request))


def _completion(call: Call, fields: Fields, given: str, common: Common) -> CompletionRequest:
    return CompletionRequest(
        model=given,
        prompt=fields.text("prompt"),
        raw=fields.flag("raw", False),
        system=fields.text("system") or None,
        template=fields.text("template") or None,
        suffix=fields.text("suffix"),
        context=_context(fields),
        options=common.options,
        keep_alive_s=common.keep_alive_s,
        logprobs=common.logprobs,
        request_id=call.request_id,
        strict_length=common.strict_length,
        constraint=common.constraint,
    )


def _conversation(
    call: Call,
    model: Model,
    given: str,
    common: Common,
    messages: tuple[Message, ...],
    tools: tuple[Tool, ...],
) -> ChatRequest:
    return ChatRequest(
        model=given,
        messages=messages,
        options=common.options,
        keep_alive_s=common.keep_alive_s,
        logprobs=common.logprobs,
        request_id=call.request_id,
        strict_length=common.strict_length,
        tools=tools,
        think=effective_think(call, model, common.think),
        constraint=common.constraint,
    )


def _context(fields: Fields) -> tuple[int, ...]:
    ids = fields.items("context")
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int):
            fields.wrong("context", "integer", item)
    return tuple(ids)


async def _load_or_unload(shape: Shape, common: Common) -> Reply:
    """An empty prompt: the official way to load or unload. Never a stream."""
    service = shape.call.service
    if common.keep_alive_s == 0:
        await service.unload(shape.model)
        reason = "unload"
    else:
        await service.load(shape.model, common.keep_alive_s, common.options)
        reason = "load"
    value = shape.start(Piece()) | {"done": True, "done_reason": reason}
    return Reply(to_json(value | shape.warning()))


async def _rendered(shape: Shape, request: ChatRequest | CompletionRequest) -> Reply:
    """`_debug_render_only`: the prompt as the model would get it; nothing is loaded."""
    prompt = await shape.call.service.tokens.prompt(request)
    value = shape.start(Piece()) | {"done": False}
    return Reply(to_json(value | {"_debug_info": {"rendered_template": prompt.text}}))


async def _answer(
    shape: Shape, common: Common, events: AsyncIterator[ChatEvent]
) -> Reply | StreamReply:
    if not common.stream:
        return await whole_answer(shape, events)
    return streamed_answer(shape, events)


ROUTES = (
    Route("POST", "/api/generate", generate, body="whole"),
    Route("POST", "/api/chat", chat, body="whole"),
)
