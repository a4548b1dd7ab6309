"""Events of a generation as the events and the final object of a response.

One writer serves both forms of answer: the whole one is what the stream's last event holds. Every
item keeps one id, every event its number, and exactly one last event ends a stream.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from ftman.chat.types import (
    ChatEvent,
    Finish,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from ftman.clock import Clock
from ftman.errors import FtmanError
from ftman.gateway.errors import OPENAI, envelope, to_json
from ftman.gateway.openai.encode import CallText, pieces_of
from ftman.gateway.openai.responses.output import (
    CallItem,
    MessageItem,
    OutputItem,
    ReasoningItem,
    Told,
)
from ftman.gateway.openai.responses.request import ResponseRequest

Event = dict[str, Any]


class Writer:
    """Feed it events; it gives back what goes to the client. `response` is the current object."""

    def __init__(self, request: ResponseRequest, clock: Clock):
        self._request = request
        self._clock = clock
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._open: OutputItem | None = None
        self._call_index = -1
        self._calls: dict[int, CallText] = {}
        self.started = False
        self.response: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(16)}",
            "object": "response",
            "created_at": int(clock.wall()),
            "completed_at": None,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": request.chat.model,
            "output": [],
            "usage": None,
            **request.echo,
        }
        if request.warnings:
            self.response["warnings"] = list(request.warnings)

    def start(self) -> list[Event]:
        """The two events before everything else; nothing the second time."""
        if self.started:
            return []
        self.started = True
        return [self._lifecycle("created"), self._lifecycle("in_progress")]

    def heartbeat(self) -> list[Event]:
        """A sign of life that counts for clients which do not count comments."""
        return self.start() or [self._lifecycle("in_progress")]

    def feed(self, event: ChatEvent) -> list[Event]:
        """What an event of the generation means for the client."""
        found: list[Event] = []
        for piece in pieces_of(event, self._calls):
            found += self.start() if _is_told(piece) else []
            found += self._feed(piece)
        return found

    def fail(self, error: FtmanError) -> list[Event]:
        """The end of a response that failed after it had begun."""
        told = envelope(OPENAI, error)["error"]
        code = "server_error"
        if error.status < 500:
            code = told["code"] if error.code == "context_length_exceeded" else "invalid_prompt"
        events = [*self.start(), *self._close("incomplete")]
        self.response |= {
            "status": "failed",
            "error": {"code": code, "message": told["message"]},
            "output": list(self._items),
        }
        return [*events, self._lifecycle("failed")]

    def _feed(self, event: ChatEvent) -> Iterator[Event]:
        if isinstance(event, ThinkingDelta):
            if event.text:
                yield from self._reasoning(event.text)
        elif isinstance(event, TextDelta):
            if event.text or event.tokens:
                yield from self._text(event)
        elif isinstance(event, ToolCallDelta):
            yield from self._call(event)
        elif isinstance(event, ToolCall):
            if event.index == self._call_index and isinstance(self._open, CallItem):
                yield from self._close("completed")
        elif isinstance(event, Finish):
            yield from self._finish(event)

    def _reasoning(self, text: str) -> Iterator[Event]:
        item = self._open
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(self._request.sealed_reasoning)
            yield from self._begin(item)
        yield from self._numbered(item.add(text))

    def _text(self, event: TextDelta) -> Iterator[Event]:
        item = self._open
        if not isinstance(item, MessageItem):
            item = MessageItem(self._request.chat.logprobs is not None)
            yield from self._begin(item)
        yield from self._numbered(item.add(event))

    def _call(self, event: ToolCallDelta) -> Iterator[Event]:
        item = self._open
        if not isinstance(item, CallItem) or event.index != self._call_index:
            item = CallItem(event.id, self._request.toolbox.callee(event.name))
            self._call_index = event.index
            self._calls[event.index] = CallText(event.id, event.name)
            yield from self._begin(item)
        self._calls[event.index].arguments += event.arguments
        yield from self._numbered(item.add(event))

    def _finish(self, finish: Finish) -> Iterator[Event]:
        cut = finish.reason == "length"
        said = any(item["type"] != "reasoning" for item in self._items)
        if not said and not cut and not isinstance(self._open, MessageItem | CallItem):
            # An answer of nothing is still an answer: clients read the last item.
            yield from self._begin(MessageItem(False))
        # A call that is still open here broke off: its ToolCall would have closed it.
        broken = cut or isinstance(self._open, CallItem)
        yield from self._close("incomplete" if broken else "completed")
        self.response |= {
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(self._clock.wall()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": list(self._items),
            "usage": usage_value(finish.usage),
        }
        told = list(dict.fromkeys((*self._request.warnings, *finish.notes)))
        if told:
            self.response["warnings"] = told
        yield self._lifecycle("incomplete" if cut else "completed")

    def _begin(self, item: OutputItem) -> Iterator[Event]:
        yield from self._close("incomplete" if isinstance(self._open, CallItem) else "completed")
        self._open = item
        yield self._event("output_item.added", {"item": item.value("in_progress")})
        yield from self._numbered(item.opening())

    def _close(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        index = len(self._items)
        self._items.append(item.value(status))
        for kind, payload in item.closing():
            yield self._numbered_event(kind, {"output_index": index} | payload)
        payload = {"output_index": index, "item": self._items[index]}
        yield self._numbered_event("response.output_item.done", payload)

    def _numbered(self, told: Iterator[Told]) -> Iterator[Event]:
        for kind, payload in told:
            yield self._numbered_event(kind, {"output_index": len(self._items)} | payload)

    def _event(self, kind: str, payload: dict[str, Any]) -> Event:
        return self._numbered_event(
            f"response.{kind}", {"output_index": len(self._items)} | payload
        )

    def _lifecycle(self, kind: str) -> Event:
        return self._numbered_event(f"response.{kind}", {"response": dict(self.response)})

    def _numbered_event(self, kind: str, payload: dict[str, Any]) -> Event:
        event = {"type": kind, "sequence_number": self._number} | payload
        self._number += 1
        return event


def frame(event: Event) -> bytes:
    """One SSE frame; clients need both lines."""
    return f"event: {event['type']}\n".encode() + b"data: " + to_json(event) + b"\n\n"


def usage_value(usage: Usage) -> dict[str, Any]:
    """The usage object. Units: tokens; input includes the cached part, output the reasoning."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.thinking_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _is_told(event: ChatEvent) -> bool:
    return isinstance(event, ThinkingDelta | TextDelta | ToolCallDelta | ToolCall | Finish)
