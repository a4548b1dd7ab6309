"""POST /v1/chat/completions: what a request means. encode.py writes the answer."""

from __future__ import annotations

from typing import Any

from ftman.chat.types import ChatRequest, Message
from ftman.errors import UnsupportedError
from ftman.gateway.body import OPENAI_TEXTS, FieldError, Fields
from ftman.gateway.openai.encode import ChatShape, answer
from ftman.gateway.openai.models import find_model
from ftman.gateway.openai.sampling import (
    choice_options,
    parse_max_tokens,
    parse_shared,
    template_kwargs,
    with_model,
)
from ftman.gateway.routes import Call, Reply, StreamReply

_ROLES = ("system", "developer", "user", "assistant")
_TEXT_PARTS = ("text", "input_text", "output_text")
_MEDIA_PARTS = ("image_url", "input_image", "input_audio", "file", "input_file")


async def chat_completions(call: Call) -> Reply | StreamReply:
    """Continue a conversation, in one piece or as SSE."""
    fields = call.fields("ChatCompletionRequest", OPENAI_TEXTS)
    messages = _messages(fields)
    _refuse_unbuilt(fields)
    limit = parse_max_tokens(fields, "max_completion_tokens", "max_tokens", low=1)
    shared = parse_shared(fields, limit)
    logprobs = _logprobs(fields)
    values = template_kwargs(fields)
    given = fields.text("model")
    model = find_model(call, given)
    options = with_model(call, model, shared.options)
    streams = [
        call.service.chat(
            ChatRequest(
                model=given,
                messages=messages,
                options=choice_options(options, choice),
                logprobs=logprobs,
                template_values=values,
                request_id=f"{call.request_id}-{choice}",
                strict_length=True,
            )
        )
        for choice in range(shared.num_choices)
    ]
    return await answer(call, shared, ChatShape(call, given), streams)


def _messages(fields: Fields) -> tuple[Message, ...]:
    items = fields.objects("messages", "object")
    if not items:
        raise FieldError("[] is too short - 'messages'", "messages")
    return tuple(_message(item) for item in items)


def _message(item: Fields) -> Message:
    role = item.text("role")
    if role in ("tool", "function") or item.has("tool_calls") or item.has("function_call"):
        raise UnsupportedError(
            "tool calls and tool results in messages are not built yet in this version"
        )
    if role not in _ROLES:
        item.invalid("role", f"must be one of {', '.join(_ROLES)}, not {role[:20]!r}")
    content = item.get("content")
    if content is None and role != "assistant":
        item.invalid("content", "is missing")
    text = content if isinstance(content, str) else _joined(item)
    thinking = next(
        (item.text(n) for n in ("reasoning_content", "reasoning", "thinking") if item.has(n)), ""
    )
    # Templates know "system"; "developer" is the newer name for the same thing.
    return Message("system" if role == "developer" else role, text, thinking)


def _joined(item: Fields) -> str:
    texts = []
    for part in item.objects("content", "object"):
        kind = part.text("type")
        if kind in _TEXT_PARTS:
            texts.append(part.text("text"))
        elif kind == "refusal":
            texts.append(part.text("refusal"))
        elif kind in _MEDIA_PARTS:
            raise UnsupportedError(
                f"{kind} parts are not built yet in this version; send text only"
            )
        elif kind != "thinking":
            part.invalid("type", f"{kind[:40]!r} is not a part this server knows")
    return "".join(texts)


def _refuse_unbuilt(fields: Fields) -> None:
    _refuse_tools(fields)
    _refuse_formats(fields)
    if "audio" in fields.items("modalities") or fields.has("audio"):
        raise UnsupportedError("audio output is not built in this version")
    if fields.flag("continue_final_message", False):
        raise UnsupportedError("continue_final_message is not built yet in this version")
    if fields.has("chat_template"):
        raise UnsupportedError("a chat_template in a request is not accepted")


def _refuse_tools(fields: Fields) -> None:
    if fields.items("tools"):
        raise UnsupportedError("tools are not built yet in this version")
    for name in ("functions", "function_call"):
        if fields.has(name):
            raise UnsupportedError(f"'{name}' is not built; it was replaced by 'tools'")
    if fields.get("tool_choice") not in (None, "auto", "none", ""):
        fields.invalid("tool_choice", "needs tools, and the request has none")


def _refuse_formats(fields: Fields) -> None:
    kind = _format_kind(fields)
    if kind in ("json_object", "json_schema"):
        raise UnsupportedError(
            "structured output (response_format) is not built yet in this version",
            hint="Ask for JSON in the prompt, and leave response_format out.",
        )
    if kind not in ("", "text"):
        fields.invalid("response_format", f"has the unknown type {kind[:40]!r}")


def _format_kind(fields: Fields) -> str:
    value: Any = fields.get("response_format")
    return fields.child("response_format").text("type") if value else ""


def _logprobs(fields: Fields) -> int | None:
    top = fields.integer("top_logprobs")
    if not fields.flag("logprobs", False):
        if top:
            fields.invalid("top_logprobs", "needs logprobs: true")
        return None
    if top is not None and not 0 <= top <= 20:
        fields.invalid("top_logprobs", f"must be between 0 and 20, not {top}")
    return top or 0
