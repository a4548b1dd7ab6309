"""What a responses request means: fields, input in all its forms, the response it continues."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ftman.catalog.model import Model
from ftman.chat.types import ChatRequest, Message
from ftman.gateway.body import OPENAI_TEXTS, FieldError, Fields
from ftman.gateway.openai import no_effect
from ftman.gateway.openai.formats import parse_constraint, text_format
from ftman.gateway.openai.messages import Conversation
from ftman.gateway.openai.models import find_model
from ftman.gateway.openai.responses.items import Turns
from ftman.gateway.openai.responses.store import Item, ResponseStore, store_of
from ftman.gateway.openai.sampling import (
    Shared,
    parse_max_tokens,
    parse_shared,
    parse_top_logprobs,
    with_model,
)
from ftman.gateway.openai.thinking import Thinking, parse_thinking
from ftman.gateway.openai.tools import Toolbox, response_tools
from ftman.gateway.routes import Call

_LOGPROBS = "message.output_text.logprobs"
_SEALED_REASONING = "reasoning.encrypted_content"
_ALLOWED = "allowed_tools"
MAX_METADATA = 16


@dataclass(frozen=True)
class ResponseRequest:
    """One request, understood. earlier and given: items for the store; echo: for the response."""

    chat: ChatRequest
    stream: bool
    store: bool
    earlier: tuple[bytes, ...]
    given: tuple[Item, ...]
    echo: Mapping[str, Any]
    toolbox: Toolbox
    sealed_reasoning: bool
    warnings: tuple[str, ...]


def parse_request(call: Call) -> ResponseRequest:
    """Read a whole request.   Raises: FieldError, UnsupportedError."""
    fields = call.fields("ResponseRequest", OPENAI_TEXTS)
    given_model = fields.text("model")
    model = find_model(call, given_model)
    _refuse_unbuilt(fields)
    shared = parse_shared(fields, parse_max_tokens(fields, "max_output_tokens", low=1))
    if shared.num_choices != 1:
        fields.invalid("n", "must be 1: a response has one answer")
    store = store_of(call.service)
    talk = Conversation(model.name.short)
    toolbox = response_tools(fields)
    thinking = parse_thinking(fields)
    earlier = _earlier(fields, store)
    given = tuple(_with_id(item) for item in _input(fields, store))
    chat = _chat_request(call, fields, model, shared, thinking, toolbox)
    before = [item for part in earlier for item in json.loads(part)]
    chat = replace(chat, messages=_turns(fields, [*before, *given], talk, toolbox))
    keep = fields.flag("store", True)
    warnings = [*talk.warnings, *toolbox.warnings, *_no_effect(fields)]
    if keep and len(call.body) + sum(map(len, earlier)) > store.max_bytes:
        keep = False
        warnings.append(f"not stored: above the {store.max_bytes >> 20} MiB that are kept")
    return ResponseRequest(
        chat=chat,
        stream=shared.stream,
        store=keep,
        earlier=earlier,
        given=given,
        echo=_echo(fields, chat, thinking) | {"store": keep},
        toolbox=toolbox,
        sealed_reasoning=_SEALED_REASONING in fields.items("include"),
        warnings=tuple(warnings),
    )


def _chat_request(
    call: Call,
    fields: Fields,
    model: Model,
    shared: Shared,
    thinking: Thinking,
    toolbox: Toolbox,
) -> ChatRequest:
    constraint, local = text_format(fields), parse_constraint(fields)
    if constraint is not None and local is not None:
        fields.invalid("text", "holds a format, and so does another field; send one")
    truncation = fields.text("truncation", "disabled")
    if truncation not in ("auto", "disabled"):
        fields.invalid("truncation", f"must be auto or disabled, not {truncation[:20]!r}")
    return ChatRequest(
        model=fields.text("model"),
        messages=(),
        options=with_model(call, model, shared.options),
        keep_alive_s=shared.keep_alive_s,
        logprobs=_logprobs(fields),
        template_values=thinking.values,
        request_id=call.request_id,
        strict_length=truncation == "disabled",
        tools=toolbox.tools,
        tool_choice=toolbox.choice,
        parallel_tool_calls=toolbox.parallel,
        think=thinking.think,
        think_if_able=True,
        constraint=constraint or local,
    )


def _turns(
    fields: Fields, items: Sequence[Item], talk: Conversation, toolbox: Toolbox
) -> tuple[Message, ...]:
    turns = Turns(talk, toolbox)
    instructions = fields.text("instructions")
    if instructions:
        turns.read(_item(fields, {"role": "system", "content": instructions}, "instructions"))
    for index, item in enumerate(items):
        turns.read(_item(fields, item, f"input[{index}]"))
    messages = turns.finish()
    if not messages:
        raise FieldError("'input' is empty: send a text or items", "input")
    return messages


def _item(fields: Fields, item: Item, path: str) -> Fields:
    return Fields(item, fields.kind, fields.texts, path)


def _earlier(fields: Fields, store: ResponseStore) -> tuple[bytes, ...]:
    previous = fields.text("previous_response_id")
    if not previous:
        return ()
    return store.get(previous, "previous_response_id").parts()


def _input(fields: Fields, store: ResponseStore) -> list[Item]:
    value = fields.get("input")
    if value is None or isinstance(value, str):
        parts = [{"type": "input_text", "text": value or ""}]
        return [{"type": "message", "role": "user", "content": parts}] if value else []
    items: list[Item] = []
    for item in fields.objects("input", "object"):
        if item.text("type") != "item_reference":
            items.append(item.values)
            continue
        found = store.item(item.text("id"))
        if found is None:
            item.invalid("id", f"{item.text('id')[:80]!r} is not an item of a stored response")
        items.append(found)
    return items


def _with_id(item: Item) -> Item:
    """The item with an id and a type of its own, as listings need them; content becomes parts."""
    kind = item.get("type") or ("message" if item.get("role") else None)
    if kind is None:
        return item
    prefix = {"message": "msg", "function_call": "fc", "reasoning": "rs"}.get(str(kind), "item")
    value = {"id": f"{prefix}_{secrets.token_hex(12)}", "type": kind} | {
        name: content for name, content in item.items() if name != "id" or content
    }
    content = value.get("content")
    if kind == "message" and isinstance(content, str):
        part = "output_text" if value.get("role") == "assistant" else "input_text"
        more: Item = {"annotations": []} if part == "output_text" else {}
        value["content"] = [{"type": part, "text": content, **more}]
    if kind == "message":
        value.setdefault("status", "completed")
    return value


def _logprobs(fields: Fields) -> int | None:
    top = parse_top_logprobs(fields)
    if _LOGPROBS in fields.items("include"):
        return top or 0
    return top


def _refuse_unbuilt(fields: Fields) -> None:
    code = "unsupported_parameter"
    if fields.flag("background", False):
        fields.invalid("background", "is not built: there is no work without a listener", code)
    for name, instead in (
        ("conversation", "send previous_response_id, or the whole input"),
        ("prompt", "send the text itself as input"),
    ):
        if fields.has(name):
            fields.invalid(name, f"is not built on this server; {instead}", code)


def _no_effect(fields: Fields) -> list[str]:
    found = no_effect.no_effect(fields, no_effect.RESPONSES)
    names = [
        f"{outer}.{inner}"
        for outer, inner in (
            ("text", "verbosity"),
            *(("reasoning", name) for name in ("summary", "generate_summary", "context", "mode")),
        )
        if fields.child(outer).has(inner)
    ]
    if fields.child("stream_options").flag("include_obfuscation", False):
        names.append("stream_options.include_obfuscation")
    names += [
        f"include: {item}"
        for item in fields.strings("include")
        if item not in (_LOGPROBS, _SEALED_REASONING)
    ]
    return found + ([f"no effect on this server: {', '.join(names)}"] if names else [])


def _echo(fields: Fields, chat: ChatRequest, thinking: Thinking) -> dict[str, Any]:
    metadata = fields.mapping("metadata")
    if len(metadata) > MAX_METADATA or not all(isinstance(v, str) for v in metadata.values()):
        fields.invalid("metadata", f"must hold at most {MAX_METADATA} texts")
    text = fields.mapping("text")
    return {
        "instructions": fields.get("instructions"),
        "frequency_penalty": chat.options.frequency_penalty or 0.0,
        "max_output_tokens": fields.integer("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": metadata,
        "parallel_tool_calls": chat.parallel_tool_calls,
        "previous_response_id": fields.text("previous_response_id") or None,
        "presence_penalty": chat.options.presence_penalty or 0.0,
        "prompt_cache_key": fields.get("prompt_cache_key"),
        "reasoning": {"effort": thinking.effort or None, "summary": None},
        "safety_identifier": fields.get("safety_identifier"),
        "temperature": chat.options.temperature,
        "text": {"format": text.get("format") or {"type": "text"}},
        "tool_choice": _choice_echo(fields.get("tool_choice")),
        "tools": fields.items("tools"),
        "top_logprobs": fields.integer("top_logprobs") or 0,
        "top_p": chat.options.top_p,
        "truncation": fields.text("truncation", "disabled"),
        "user": fields.get("user"),
        "background": False,
        "service_tier": "default",
    }


def _choice_echo(choice: Any) -> Any:
    """The choice that counts: one of a hosted tool is none here."""
    if isinstance(choice, dict) and choice.get("type") not in ("function", "custom", _ALLOWED):
        return "auto"
    return choice or "auto"
