"""A conversation to the ids an engine continues: template, then tokens, then anchors.

The text is encoded whole; control tokens are recognised only where the template wrote them. Which
messages are effective (SYSTEM, MESSAGE lines, truncation) is decided by the caller.

Chat templates are stricter than clients. When a template refuses a conversation in its own words,
it is offered again, each time changed a little more: all system texts joined in front; neighbours
of one role joined; the system text put in front of the first user message. The first form that it
takes is used; if none is, the first refusal is the error.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftman.chat import traced
from ftman.chat.anchors import anchors_of
from ftman.chat.formats.registry import detect, format_named
from ftman.chat.go_chat import render_insert, render_messages
from ftman.chat.go_template import GoTemplate
from ftman.chat.own_turns import OwnReplies, encode_with
from ftman.chat.template import JinjaTemplates, TemplateRaisedError
from ftman.chat.tokenizer import Span, Tokenizer
from ftman.chat.traced import TEMPLATE, content_origin
from ftman.chat.types import Message, Prompt
from ftman.errors import UnsupportedError, UsageError

DEFAULT_GO = "{{ .Prompt }}"
"""Used when a model has no template at all."""

_JOINT = "\n\n"
_ITERATES = re.compile(
    r"arguments['\"\]]*\s*(\|\s*(tojson|items|dictsort)|\.items|is\s+(not\s+)?(mapping|string))"
)
"""How a template treats arguments that it takes as a mapping."""


@dataclass(frozen=True)
class ChatTemplate:
    """A model's templates. The Go template is used when there is one, else the Jinja one."""

    go: str = ""
    jinja: str = ""


async def render_chat(
    templates: JinjaTemplates,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    values: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    own: OwnReplies | None = None,
) -> Prompt:
    """Render a conversation and encode it, replies in it that are known by their generated ids.

    A last assistant message is continued: the text ends where its content ends. values: `tools`,
    `think` (true, false or a level), and whatever else a Jinja template may read.
    Raises: UsageError when the template refuses or breaks.
    """
    if not messages:
        raise UsageError("messages must not be empty", hint="Send at least one message.")
    given = dict(values or {})
    if template.jinja and not template.go:
        text, shown = await _render_jinja(
            templates, template.jinja, tokenizer, messages, given, add_generation_prompt
        )
        return await asyncio.to_thread(encode_prompt, tokenizer, text, shown, own)
    source = template.go or DEFAULT_GO

    def work() -> Prompt:
        text = render_messages(GoTemplate.parse(source), messages, given)
        return encode_prompt(tokenizer, text, messages, own)

    return await asyncio.to_thread(work)


async def render_generate(
    templates: JinjaTemplates,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    system: str = "",
    history: Sequence[Message] = (),
    suffix: str = "",
    values: Mapping[str, Any] | None = None,
) -> Prompt:
    """Render one prompt: as the last user message after `system` and `history`, or, with a suffix,
    to fill in the middle.

    Raises: UsageError as render_chat; UnsupportedError for a suffix the template cannot place.
    """
    if not (prompt and suffix):
        first = (Message("system", system),) if system else ()
        messages = (*first, *history, Message("user", prompt))
        return await render_chat(templates, template, tokenizer, messages, values=values)
    parsed = GoTemplate.parse(template.go or DEFAULT_GO)
    if not parsed.mentions(".Suffix"):
        raise UnsupportedError(
            "this model's template cannot fill in the middle: it does not mention .Suffix",
            hint="Leave `suffix` out, or use a model with the insert capability.",
        )
    given = dict(values or {})

    def work() -> Prompt:
        return encode_prompt(tokenizer, render_insert(parsed, prompt, suffix, given))

    return await asyncio.to_thread(work)


def encode_prompt(
    tokenizer: Tokenizer,
    text: str,
    messages: Sequence[Message] = (),
    own: OwnReplies | None = None,
) -> Prompt:
    """Encode a rendered text; value text yields no control token. Puts BOS first where the
    tokenizer adds one and the text does not start with it. messages: those the text was made of.

    Shape: anchors are offsets into token_ids, sorted, each inside the prompt: where a message
    starts, and where its content starts and ends.
    """
    spans = []
    at, plain = 0, traced.plain(text)  # a part of it is cut in no time; one of `text` looks for it
    for length, origin in traced.runs_of(text):
        spans.append(Span(plain[at : at + length], special=origin == TEMPLATE))
        at += length
    placed = list(own.place(tokenizer, text, messages)) if own is not None else []
    ids, offsets = encode_with(tokenizer, text, spans, placed)
    anchors = anchors_of(tokenizer, ids, offsets, traced.runs_of(text))
    whole = tokenizer.with_bos(ids)
    shift = len(whole) - len(ids)
    kept = sorted({anchor + shift for anchor in anchors if 0 < anchor + shift < len(whole)})
    return Prompt(tuple(whole), tuple(kept), plain, plain[len(plain) - _opening_chars(text) :])


def _opening_chars(text: str) -> int:
    last = traced.runs_of(text)[-1:]
    return last[0][0] if last and last[0][1] == TEMPLATE else 0


def capabilities_of(template: ChatTemplate, parser: str = "") -> tuple[str, ...]:
    """What a model can do by its template and its declared format: completion, insert, tools,
    thinking."""
    declared = format_named(parser) if parser else None
    if template.go:
        try:
            parsed = GoTemplate.parse(template.go)
        except UsageError:
            return ("completion",)
        found = {
            "insert": parsed.mentions(".Suffix"),
            "tools": parsed.mentions(".Tools"),
            "thinking": parsed.thinking_tags() is not None,
        }
    else:
        source = template.jinja
        splits = "split('</think>')" in source or 'split("</think>")' in source
        marks = detect(source).reasoning
        tags = marks is not None and marks.start in source and marks.end in source
        found = {
            "insert": False,
            "tools": "tools" in source or "tool_call" in source,
            "thinking": tags or (splits and "reasoning_content" not in source),
        }
    if declared is not None:
        found["tools"] |= declared.has_calls
        found["thinking"] |= declared.reasoning is not None
    return ("completion", *(name for name, has in found.items() if has))


async def _render_jinja(
    templates: JinjaTemplates,
    source: str,
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    given: Mapping[str, Any],
    add_generation_prompt: bool,
) -> tuple[str, Sequence[Message]]:
    """The text, and the form of the conversation that the template took."""
    refusal: TemplateRaisedError | None = None
    for attempt in _attempts(_known_roles(messages, source)):
        continues = add_generation_prompt and _continues(attempt)
        if add_generation_prompt and attempt[-1] == Message("assistant", ""):
            attempt = attempt[:-1] or attempt
        values = {
            "tools": None,
            "documents": None,
            **_thinking_values(given),
            "add_generation_prompt": add_generation_prompt and not continues,
        }
        try:
            text = await _with_messages(templates, source, values, attempt, tokenizer)
        except TemplateRaisedError as error:
            refusal = refusal or error
            continue
        return _cut_after(text, len(attempt) - 1) if continues else text, attempt
    assert refusal is not None
    raise refusal


async def _with_messages(
    templates: JinjaTemplates,
    source: str,
    values: Mapping[str, Any],
    messages: Sequence[Message],
    tokenizer: Tokenizer,
) -> str:
    """Render with the arguments of calls as the template seems to want them, mappings or JSON
    texts; if it breaks on them, as the other."""
    has_calls = any(message.tool_calls for message in messages)
    as_text = has_calls and "arguments" in source and not _ITERATES.search(source)
    for other in (False, True):
        forms = [_message_dict(message, as_text is not other) for message in messages]
        try:
            return await templates.render(
                source, {**values, "messages": forms}, trusted=tokenizer.special_tokens
            )
        except UsageError as error:
            if error.code != "template_error" or other or not has_calls:
                raise
            first = error
    raise first


def _attempts(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The conversation, then ever simpler forms of it; each only if it differs."""
    seen: list[list[Message]] = []
    joined_system = _system_first(messages)
    for form in (
        list(messages),
        joined_system,
        _neighbours_joined(joined_system),
        _neighbours_joined(_system_folded(joined_system)),
    ):
        if form and form not in seen:
            seen.append(form)
            yield form


def _known_roles(messages: Sequence[Message], source: str) -> list[Message]:
    if "developer" in source:
        return list(messages)
    return [
        dataclasses.replace(message, role="system") if message.role == "developer" else message
        for message in messages
    ]


def _system_first(messages: Sequence[Message]) -> list[Message]:
    texts = [message.content for message in messages if message.role == "system"]
    if not texts:
        return list(messages)
    others = [message for message in messages if message.role != "system"]
    return [Message("system", _JOINT.join(filter(None, texts))), *others]


def _neighbours_joined(messages: Sequence[Message]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        same = last is not None and last.role == message.role and message.role != "tool"
        if last is None or not same or last.tool_calls or message.tool_calls:
            joined.append(message)
            continue
        content = _JOINT.join(filter(None, (last.content, message.content)))
        joined[-1] = dataclasses.replace(last, content=content)
    return joined


def _system_folded(messages: Sequence[Message]) -> list[Message]:
    if not messages or messages[0].role != "system":
        return list(messages)
    system, *others = messages
    if others and others[0].role == "user":
        content = _JOINT.join(filter(None, (system.content, others[0].content)))
        return [dataclasses.replace(others[0], content=content), *others[1:]]
    return [Message("user", system.content), *others]


def _continues(messages: Sequence[Message]) -> bool:
    last = messages[-1]
    return last.role == "assistant" and bool(last.content) and not last.tool_calls


def _cut_after(text: str, message_idx: int) -> str:
    """The text up to the end of a message's content; whole when the content is not in it."""
    at = end = 0
    for length, origin in traced.runs_of(text):
        at += length
        if origin == content_origin(message_idx):
            end = at
    return text[:end] if end else text


def _thinking_values(given: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(given)
    think = values.pop("think", None)
    if think is not None:
        values.setdefault("enable_thinking", bool(think))
    if isinstance(think, str):
        values.setdefault("reasoning_effort", think)
    return values


def _message_dict(message: Message, as_text: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        fields |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), message.thinking)
    if message.tool_calls:
        fields["tool_calls"] = [_call_dict(call, as_text) for call in message.tool_calls]
    if message.tool_name:
        fields["name"] = message.tool_name
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _call_dict(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    made = {"type": "function", **call}
    function = made.get("function")
    if as_text and isinstance(function, Mapping) and isinstance(function.get("arguments"), Mapping):
        text = json.dumps(function["arguments"], ensure_ascii=False)
        made["function"] = {**function, "arguments": text}
    return made
