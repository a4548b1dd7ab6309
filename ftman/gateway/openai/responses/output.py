"""Output items while they grow: what each says when it opens, grows and closes. No order here."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from ftman.chat.types import TextDelta, TokenText, ToolCallDelta
from ftman.gateway.openai.logprobs import token_entries
from ftman.gateway.openai.responses.items import seal
from ftman.gateway.openai.tools import FREE_TEXT, Callee

Told = tuple[str, dict[str, Any]]
"""Type and payload of an event, without its number and its output_index."""


class ReasoningItem:
    """The model's reasoning, as raw text."""

    def __init__(self, sealed: bool):
        self.id = f"rs_{secrets.token_hex(12)}"
        self._sealed = sealed
        self._text = ""

    def opening(self) -> Iterator[Told]:
        """Nothing beside the item itself."""
        return iter(())

    def add(self, text: str) -> Iterator[Told]:
        """More of it."""
        self._text += text
        yield "response.reasoning_text.delta", self._place() | {"delta": text}

    def closing(self) -> Iterator[Told]:
        """The whole text."""
        yield "response.reasoning_text.done", self._place() | {"text": self._text}

    def value(self, status: str) -> dict[str, Any]:
        """The item."""
        content = [{"type": "reasoning_text", "text": self._text}] if self._text else []
        value: dict[str, Any] = {"id": self.id, "type": "reasoning", "summary": []}
        value |= {"content": content, "status": status}
        return value | ({"encrypted_content": seal(self._text)} if self._sealed else {})

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "content_index": 0}


class MessageItem:
    """The answer's text."""

    def __init__(self, with_logprobs: bool) -> None:
        self.id = f"msg_{secrets.token_hex(12)}"
        self._with_logprobs = with_logprobs
        self._text = ""
        self._tokens: list[TokenText] = []

    def opening(self) -> Iterator[Told]:
        """Its one part."""
        yield "response.content_part.added", self._place() | {"part": self._part()}

    def add(self, event: TextDelta) -> Iterator[Told]:
        """More text, with its tokens where they were asked for."""
        tokens = event.tokens if self._with_logprobs else ()
        self._text += event.text
        self._tokens += tokens
        told = {"delta": event.text, "logprobs": token_entries(tokens)}
        yield "response.output_text.delta", self._place() | told

    def closing(self) -> Iterator[Told]:
        """The whole text and its part."""
        told = {"text": self._text, "logprobs": token_entries(self._tokens)}
        yield "response.output_text.done", self._place() | told
        yield "response.content_part.done", self._place() | {"part": self._part()}

    def value(self, status: str) -> dict[str, Any]:
        """The item; its part is there as soon as it holds something."""
        content = [] if status == "in_progress" else [self._part()]
        value: dict[str, Any] = {"id": self.id, "type": "message", "role": "assistant"}
        return value | {"status": status, "content": content}

    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = {"type": "output_text", "text": self._text, "annotations": []}
        return part | {"logprobs": token_entries(self._tokens)}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "content_index": 0}


class CallItem:
    """A call of a function, or of a free-text tool, whose text comes in one piece."""

    def __init__(self, call_id: str, callee: Callee):
        prefix = "ctc" if callee.custom else "fc"
        self.id = f"{prefix}_{secrets.token_hex(12)}"
        self._call_id = call_id
        self._callee = callee
        self._arguments = ""

    def opening(self) -> Iterator[Told]:
        """Nothing beside the item itself."""
        return iter(())

    def add(self, event: ToolCallDelta) -> Iterator[Told]:
        """More of the arguments."""
        self._arguments += event.arguments
        if event.arguments and not self._callee.custom:
            told = {"item_id": self.id, "delta": event.arguments}
            yield "response.function_call_arguments.delta", told

    def closing(self) -> Iterator[Told]:
        """The whole arguments."""
        if self._callee.custom:
            text = self._free_text()
            place = {"item_id": self.id}
            yield "response.custom_tool_call_input.delta", place | {"delta": text}
            yield "response.custom_tool_call_input.done", place | {"input": text}
            return
        told = {"item_id": self.id, "name": self._callee.name, "arguments": self._arguments}
        yield "response.function_call_arguments.done", told

    def value(self, status: str) -> dict[str, Any]:
        """The item, under the client's name for the tool."""
        kind = "custom_tool_call" if self._callee.custom else "function_call"
        value: dict[str, Any] = {"id": self.id, "type": kind, "call_id": self._call_id}
        value["name"] = self._callee.name
        if self._callee.namespace:
            value["namespace"] = self._callee.namespace
        if self._callee.custom:
            return value | {"input": "" if status == "in_progress" else self._free_text()}
        return value | {"arguments": self._arguments, "status": status}

    def _free_text(self) -> str:
        try:
            parsed: Any = json.loads(self._arguments or "{}")
        except (ValueError, RecursionError):
            return self._arguments
        if isinstance(parsed, Mapping) and isinstance(parsed.get(FREE_TEXT), str):
            return str(parsed[FREE_TEXT])
        return self._arguments if parsed else ""


OutputItem = ReasoningItem | MessageItem | CallItem
