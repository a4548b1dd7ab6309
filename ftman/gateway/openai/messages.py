"""Chat messages of a request as turns: content in all its forms, calls and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftman.chat.types import Message
from ftman.gateway.body import FieldError, Fields
from ftman.gateway.openai.tools import FREE_TEXT

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text", "summary_text", "reasoning_text")
_IMAGE_PARTS = ("image_url", "input_image")
_UNSUPPORTED = "unsupported_parameter"
_OTHER_MEDIA = ("input_audio", "file", "input_file")
IMAGE_NOTE = "[an image was here; this model reads text only]"


@dataclass
class Conversation:
    """For whom messages are read, and what the client should know about them."""

    model_name: str
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Say something once."""
        if text not in self.warnings:
            self.warnings.append(text)


def chat_messages(fields: Fields, talk: Conversation) -> tuple[Message, ...]:
    """The `messages` of a chat request.   Raises: FieldError naming the message."""
    items = fields.objects("messages", "object")
    if not items:
        raise FieldError("[] is too short - 'messages'", "messages")
    return join_leading_system([_message(item, talk) for item in items])


def check_end(fields: Fields, messages: Sequence[Message]) -> None:
    """Whether the prompt can end as asked: a last assistant message is always continued.

    Raises: FieldError.
    """
    last = messages[-1]
    if last.role == "assistant" and last.tool_calls:
        fields.invalid("messages", "end with tool_calls; send the tool's results behind them")
    generates = fields.flag("add_generation_prompt", True)
    if not fields.flag("continue_final_message", False):
        if not generates:
            fields.invalid("add_generation_prompt", "must be true in this version", _UNSUPPORTED)
    elif last.role != "assistant" or not last.content:
        fields.invalid("continue_final_message", "needs an assistant message with text at the end")
    elif fields.get("add_generation_prompt"):
        fields.invalid("continue_final_message", "and add_generation_prompt cannot both be true")


def join_leading_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """System texts at the beginning as one: many templates raise at a second one."""
    count = 0
    while count < len(messages) and messages[count].role == "system":
        count += 1
    if count < 2:
        return tuple(messages)
    text = "\n\n".join(message.content for message in messages[:count] if message.content)
    return (Message("system", text), *messages[count:])


def _message(item: Fields, talk: Conversation) -> Message:
    role = item.text("role")
    if role not in ROLES:
        item.invalid("role", f"must be one of {', '.join(ROLES)}, not {role[:20]!r}")
    if item.get("content") is None and role != "assistant":
        item.invalid("content", "is missing")
    if role in ("tool", "function"):
        text = content_text(item, talk, in_result=True)
        call_id = item.text("tool_call_id")
        return Message("tool", text, tool_name=item.text("name"), tool_call_id=call_id)
    if item.has("name"):
        talk.warn("no effect on this server: messages[].name")
    text = content_text(item, talk)
    if role != "assistant":
        # Templates know "system"; "developer" is the newer name for the same thing.
        return Message("system" if role == "developer" else role, text)
    return Message(role, text, _thinking(item), tool_calls=tuple(_calls(item)))


def _thinking(item: Fields) -> str:
    for name in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(item.get(name), str) and item.get(name):
            return item.text(name)
    if isinstance(item.get("content"), list):
        parts = item.objects("content", "object")
        return "".join(p.text("thinking") for p in parts if p.text("type") == "thinking")
    return ""


def _calls(item: Fields) -> list[Mapping[str, Any]]:
    found = []
    for call in item.objects("tool_calls", "object"):
        custom = call.text("type") == "custom"
        inner = call.child("custom" if custom else "function")
        value = {FREE_TEXT: inner.text("input")} if custom else inner.get("arguments")
        found.append(_call(call.text("id"), inner, value))
    if item.has("function_call"):
        inner = item.child("function_call")
        found.append(_call("", inner, inner.get("arguments")))
    return found


def _call(call_id: str, inner: Fields, arguments: Any) -> Mapping[str, Any]:
    name = inner.text("name")
    if not name:
        inner.invalid("name", "is missing")
    return call_value(call_id, name, arguments)


def call_value(call_id: str, name: str, arguments: Any) -> Mapping[str, Any]:
    """A call as Message.tool_calls holds it; arguments may still be the text that came."""
    return {"id": call_id, "function": {"name": name, "arguments": arguments}}


def content_text(
    item: Fields, talk: Conversation, name: str = "content", *, in_result: bool = False
) -> str:
    """Content as one text.

    Images are refused, except in tool results: those come again in every later turn of an agent,
    so a note takes their place.   Raises: FieldError naming the part.
    """
    value = item.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        item.wrong(name, "string or array", value)
    texts = []
    for part in item.objects(name, "object"):
        kind = part.text("type")
        if kind in _TEXT_PARTS:
            texts.append(part.text("text"))
        elif kind == "refusal":
            texts.append(part.text("refusal"))
        elif kind in _IMAGE_PARTS and in_result:
            texts.append(IMAGE_NOTE)
            talk.warn(f"{talk.model_name} reads text only: images in tool results were left out")
        elif kind in _IMAGE_PARTS:
            part.invalid("type", f"is an image, and {talk.model_name} reads text only")
        elif kind in _OTHER_MEDIA:
            part.invalid("type", f"{kind!r} is not read by this server; send text")
        elif kind != "thinking":
            part.invalid("type", f"{kind[:40]!r} is not a part this server knows")
    return "".join(texts)
