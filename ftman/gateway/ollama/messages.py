"""Messages and tools of /api/chat: parsed into the chat types, and calls written back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ftman.chat.types import Message, Tool, ToolCall
from ftman.gateway.body import FieldError, Fields


def parse_messages(fields: Fields) -> tuple[Message, ...]:
    """The `messages` array.   Raises: FieldError with Go's texts."""
    return tuple(_message(item) for item in fields.objects("messages", "ChatRequest.messages"))


def _message(item: Fields) -> Message:
    return Message(
        role=item.text("role").lower(),
        content=item.text("content"),
        thinking=item.text("thinking"),
        tool_name=item.text("tool_name"),
        tool_call_id=item.text("tool_call_id"),
        tool_calls=tuple(
            _call(call) for call in item.objects("tool_calls", "ChatRequest.messages.tool_calls")
        ),
    )


def _call(call: Fields) -> dict[str, Any]:
    function = call.child("function", f"{call.kind}.function")
    index = function.integer("index")
    value: dict[str, Any] = {
        "id": call.text("id"),
        "function": {
            "name": function.text("name"),
            "arguments": function.mapping("arguments"),
        },
    }
    if index is not None:
        value["function"]["index"] = index
    return value


def parse_tools(fields: Fields) -> tuple[Tool, ...]:
    """The `tools` array. Every keyword of the schemas is kept, also those Ollama drops.

    Raises: FieldError for a wrong type.
    """
    return tuple(_tool(item) for item in fields.objects("tools", "ChatRequest.tools"))


def require_names(tools: Sequence[Tool]) -> None:
    """A call must be able to name its tool.   Raises: FieldError."""
    for place, tool in enumerate(tools):
        if not tool.name:
            raise FieldError(f"tools[{place}].function.name is missing; a call could not name it")


def _tool(item: Fields) -> Tool:
    kind = item.text("type") or "function"
    function = item.child("function", "ChatRequest.tools.function")
    return Tool(
        name=function.text("name"),
        description=function.text("description"),
        parameters=function.mapping("parameters"),
        given={**item.values, "type": kind},
    )


def call_value(call: ToolCall) -> dict[str, Any]:
    """One entry of `message.tool_calls`; arguments are an object, not a text."""
    function = {"index": call.index, "name": call.name, "arguments": dict(call.arguments)}
    return {"id": call.id, "function": function}
