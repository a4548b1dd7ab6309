"""POST /api/generate and /api/chat: parse, run, encode."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from ftman.chat.types import (
    ChatEvent,
    ChatRequest,
    CompletionRequest,
    Finish,
    Message,
    TextDelta,
    TokenText,
)
from ftman.errors import EngineDiedError, FtmanError, UnsupportedError
from ftman.gateway.body import OLLAMA_TEXTS, FieldError, Fields
from ftman.gateway.errors import OLLAMA, encode_error, to_json
from ftman.gateway.ollama.values import (
    Common,
    find_model,
    parse_common,
    refuse_unbuilt,
)
from ftman.gateway.routes import Call, Reply, Route, StreamReply
from ftman.gateway.stream import NDJSON, ndjson
from ftman.gateway.times import nanoseconds, utc_stamp
from ftman.service.prompts import ContextLengthError

_TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the "
    "prompt, adjust the context length in settings, or use a model with a longer context length"
)
_MIN_LOGPROB = -9999.0


async def generate(call: Call) -> Reply | StreamReply:
    """POST /api/generate."""
    fields = call.fields("GenerateRequest", OLLAMA_TEXTS)
    given, prompt = fields.text("model"), fields.text("prompt")
    common = parse_common(fields)
    request = CompletionRequest(
        model=given,
        prompt=prompt,
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
    )
    model = find_model(call, given)
    refuse_unbuilt(call, model, given, fields, common)
    if request.raw and (request.template or request.system or request.context):
        raise FieldError("raw mode does not support template, system, or context")
    if request.suffix and "insert" not in call.service.capabilities(model):
        raise FieldError(f"{model.name.full} does not support insert", "suffix")
    shape = _Shape(call, given, "response", keeps_context=not request.raw, notes=common.notes)
    if not prompt:
        return await _load_or_unload(shape, common)
    return await _answer(shape, common, call.service.complete(request, _template_values(common)))


async def chat(call: Call) -> Reply | StreamReply:
    """POST /api/chat."""
    fields = call.fields("ChatRequest", OLLAMA_TEXTS)
    given = fields.text("model")
    common = parse_common(fields)
    messages = _messages(fields)
    if not given:
        raise FieldError("model is required", "model")
    model = find_model(call, given)
    refuse_unbuilt(call, model, given, fields, common)
    shape = _Shape(call, given, "message", notes=common.notes)
    if not messages:
        return await _load_or_unload(shape, common)
    request = ChatRequest(
        model=given,
        messages=messages,
        options=common.options,
        keep_alive_s=common.keep_alive_s,
        logprobs=common.logprobs,
        template_values=_template_values(common),
        request_id=call.request_id,
        strict_length=common.strict_length,
    )
    return await _answer(shape, common, call.service.chat(request))


def _context(fields: Fields) -> tuple[int, ...]:
    ids = fields.items("context")
    for item in ids:
        if isinstance(item, bool) or not isinstance(item, int):
            fields.wrong("context", "integer", item)
    return tuple(ids)


def _messages(fields: Fields) -> tuple[Message, ...]:
    messages = []
    for item in fields.objects("messages", "ChatRequest.messages"):
        if item.items("tool_calls") or item.text("role").lower() == "tool":
            raise UnsupportedError("tool calls in messages are not built yet in this version")
        messages.append(
            Message(
                role=item.text("role").lower(),
                content=item.text("content"),
                thinking=item.text("thinking"),
                tool_name=item.text("tool_name"),
                tool_call_id=item.text("tool_call_id"),
            )
        )
    return tuple(messages)


def _template_values(common: Common) -> dict[str, Any]:
    """`think: false` reaches templates under the names they look for."""
    return {} if common.think is None else {"think": common.think}


@dataclass
class _Shape:
    """Builds the objects of one reply. key: "response" (generate) or "message" (chat)."""

    call: Call
    model: str
    key: str
    keeps_context: bool = False
    notes: tuple[str, ...] = ()
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def start(self, text: str) -> dict[str, Any]:
        """The fields every object begins with."""
        value: Any = text
        if self.key == "message":
            value = {"role": "assistant", "content": text}
        stamp = utc_stamp(self.call.service.clock.wall())
        return {"model": self.model, "created_at": stamp, self.key: value}

    def delta(self, event: TextDelta) -> dict[str, Any]:
        """One piece of text."""
        value = self.start(event.text) | {"done": False}
        if event.tokens:
            value["logprobs"] = [logprob_entry(token) for token in event.tokens]
        return value

    def last(self, event: Finish, text: str = "") -> dict[str, Any]:
        """The object with `done: true`."""
        value = self.start(text) | {"done": True, "done_reason": event.reason}
        if self.keeps_context and event.context:
            value["context"] = list(event.context)
        usage = event.usage
        self.call.tally.prompt_tokens = usage.prompt_tokens
        self.call.tally.completion_tokens = usage.completion_tokens
        metrics = {
            "total_duration": nanoseconds(usage.total_s),
            "load_duration": nanoseconds(usage.load_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(usage.prefill_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(usage.decode_s),
        }
        value |= {name: number for name, number in metrics.items() if number}
        notes = (*self.notes, *event.notes)
        return value | ({"warning": "; ".join(notes)} if notes else {})


async def _load_or_unload(shape: _Shape, common: Common) -> Reply:
    """An empty prompt: the official way to load or unload. Never a stream."""
    service = shape.call.service
    if common.keep_alive_s == 0:
        await service.unload(shape.model)
        reason = "unload"
    else:
        await service.load(shape.model, common.keep_alive_s, common.options)
        reason = "load"
    return Reply(to_json(shape.start("") | {"done": True, "done_reason": reason}))


async def _answer(
    shape: _Shape, common: Common, events: AsyncIterator[ChatEvent]
) -> Reply | StreamReply:
    if not common.stream:
        return await _whole(shape, events)
    return StreamReply(
        _pieces(shape, events),
        NDJSON,
        on_error=lambda error: encode_error(OLLAMA, _native(error)) + b"\n",
        heartbeat=lambda: ndjson(shape.start("") | {"done": False}),
    )


async def _pieces(shape: _Shape, events: AsyncIterator[ChatEvent]) -> AsyncIterator[bytes]:
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, TextDelta) and (event.text or event.tokens):
                    yield ndjson(shape.delta(event))
                elif isinstance(event, Finish):
                    yield ndjson(shape.last(event))
    except FtmanError as error:
        raise _native(error) from None


async def _whole(shape: _Shape, events: AsyncIterator[ChatEvent]) -> Reply:
    finish = Finish("stop")
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if isinstance(event, TextDelta):
                    shape.texts.append(event.text)
                    shape.logprobs += [logprob_entry(token) for token in event.tokens]
                elif isinstance(event, Finish):
                    finish = event
    except FtmanError as error:
        raise _native(error) from None
    value = shape.last(finish, "".join(shape.texts))
    if shape.logprobs:
        value["logprobs"] = shape.logprobs
    return Reply(to_json(value))


def logprob_entry(token: TokenText) -> dict[str, Any]:
    """One token's entry; alternatives only when there are some."""
    value: dict[str, Any] = {
        "token": token.text,
        "logprob": max(_MIN_LOGPROB, token.logprob),
        "bytes": list(token.data),
    }
    if token.top:
        value["top_logprobs"] = [
            {"token": text, "logprob": max(_MIN_LOGPROB, logprob), "bytes": list(data)}
            for text, logprob, data in token.top
        ]
    return value


def _native(error: FtmanError) -> FtmanError:
    """The error with Ollama's text where it has one."""
    if isinstance(error, ContextLengthError):
        return FieldError(_TOO_LONG)
    if isinstance(error, EngineDiedError) and "running the model" not in error.message:
        return EngineDiedError(
            f"an error was encountered while running the model: {error.message}",
            hint=error.hint,
            code=error.code,
            status=error.status,
        )
    return error


ROUTES = (
    Route("POST", "/api/generate", generate, body="whole"),
    Route("POST", "/api/chat", chat, body="whole"),
)
