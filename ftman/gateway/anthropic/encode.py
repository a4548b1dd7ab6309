"""The answer of /v1/messages, as events or whole. What a request means is request.py's business."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

from ftman.chat.types import (
    ChatEvent,
    Finish,
    TextDelta,
    ThinkingDelta,
    ToolCall,
    ToolCallDelta,
    Waiting,
)
from ftman.errors import FtmanError
from ftman.gateway.anthropic.content import TOOL_ID_PREFIX
from ftman.gateway.anthropic.request import Asked
from ftman.gateway.errors import ANTHROPIC, encode_error, to_json
from ftman.gateway.routes import Call, Reply, StreamReply
from ftman.gateway.stream import SSE, SSE_HEADERS

SIGNATURE = "ft"
"""Of every thinking block: nobody checks it, but clients want one."""

PINGS_BEFORE_DELTAS = 6
"""Silences answered by a ping; after them an empty delta is sent, since some versions of Claude
Code count only those as life and give up after five minutes."""

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


async def answer(call: Call, asked: Asked, events: AsyncIterator[ChatEvent]) -> Reply | StreamReply:
    """Run a generation and encode it."""
    message = _Message(call, asked)
    if asked.stream:
        return StreamReply(
            _frames(message, events),
            SSE,
            on_error=lambda error: error_frame(error, call.request_id),
            heartbeat=message.sign_of_life,
            headers=SSE_HEADERS,
        )
    whole = _Whole()
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        async for event in events:
            whole.add(event)
            if isinstance(event, Finish):
                message.finish = event
    value = message.value() | {"content": whole.content} | message.ending(whole.num_calls)
    value["usage"] = message.usage()
    if message.warnings:
        value["warnings"] = list(message.warnings)
    return Reply(to_json(value) + b"\n", media_type="application/json")


async def _frames(message: _Message, events: AsyncIterator[ChatEvent]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        async for event in events:
            piece = message.frames(event)
            if piece:
                yield piece


def frame(kind: str, **fields: Any) -> bytes:
    """One event."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), to_json({"type": kind} | fields))


def error_frame(error: FtmanError, request_id: str) -> bytes:
    """The last event of a stream that failed."""
    return b"event: error\ndata: %s\n\n" % encode_error(ANTHROPIC, error, request_id)


def _delta(index: int, kind: str, field: str, text: str) -> bytes:
    # Once per token: only the text itself goes through the JSON encoder.
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
        b'"delta":{"type":"%s","%s":%s}}\n\n'
        % (index, kind.encode(), field.encode(), to_json(text))
    )


class _Message:
    """One answer: its identity, its open block, its end."""

    def __init__(self, call: Call, asked: Asked):
        self._call = call
        self._asked = asked
        self._id = "msg_" + secrets.token_hex(12)
        self._started = False
        self._prompt_tokens = 0
        self._index = -1
        self._open = ""
        self._call_index = -1
        self._num_calls = 0
        self._num_silences = 0
        self.finish: Finish | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user must be told."""
        notes = self.finish.notes if self.finish else ()
        return tuple(dict.fromkeys((*self._asked.warnings, *notes)))

    def value(self) -> dict[str, Any]:
        """The message object without its end."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._asked.chat.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }

    def usage(self) -> dict[str, Any]:
        """Tokens so far. The three kinds of input add up to the prompt."""
        used = self.finish.usage if self.finish else None
        if used is None:
            return _usage(self._prompt_tokens, 0, 0)
        tally = self._call.tally
        tally.prompt_tokens, tally.completion_tokens = used.prompt_tokens, used.completion_tokens
        fresh = used.prompt_tokens - used.cached_tokens
        value = _usage(fresh, used.cached_tokens, used.completion_tokens)
        if used.thinking_tokens:
            value["output_tokens_details"] = {"thinking_tokens": used.thinking_tokens}
        return value

    def ending(self, num_calls: int) -> dict[str, Any]:
        """Why it ended, in this dialect's words."""
        assert self.finish is not None
        stopped = self.finish.stop_sequence
        if stopped is not None and stopped in self._asked.stop_sequences:
            return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
        reason = "end_turn"
        if self.finish.reason == "length":
            reason = "max_tokens"
        elif num_calls:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": None}

    def frames(self, event: ChatEvent) -> bytes:
        """The events that tell `event`; b"" for none."""
        if isinstance(event, Waiting):
            if event.phase == "prefill":
                self._prompt_tokens = event.total
            return b""
        head = self._start()
        if isinstance(event, TextDelta):
            return head + self._piece("text", "text_delta", event.text)
        if isinstance(event, ThinkingDelta):
            return head + self._piece("thinking", "thinking_delta", event.text)
        if isinstance(event, ToolCallDelta):
            return head + self._call_piece(event.index, event.id, event.name, event.arguments)
        if isinstance(event, ToolCall):
            return head + self._whole_call(event)
        return head + self._end(event)

    def sign_of_life(self) -> bytes:
        """What breaks a silence: first the message's head, then pings, at last empty deltas."""
        self._num_silences += 1
        head = self._start()
        if head:
            return head + PING
        if self._num_silences <= PINGS_BEFORE_DELTAS:
            return PING
        if not self._open:
            return self._open_block("thinking" if self._asked.chat.think else "text")
        kind, field = _DELTAS[self._open]
        return _delta(self._index, kind, field, "")

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return frame("message_start", message=self.value() | {"usage": self.usage()})

    def _piece(self, block: str, kind: str, text: str) -> bytes:
        if not text:
            return b""
        head = b"" if self._open == block else self._open_block(block)
        return head + _delta(self._index, kind, block, text)

    def _open_block(self, kind: str, **fields: Any) -> bytes:
        head = self._close_block()
        self._index += 1
        self._open = kind
        start = {"type": kind} | (fields or _EMPTY_BLOCKS[kind])
        return head + frame("content_block_start", index=self._index, content_block=start)

    def _close_block(self) -> bytes:
        if not self._open:
            return b""
        sign = b""
        if self._open == "thinking":
            sign = _delta(self._index, "signature_delta", "signature", SIGNATURE)
        self._open = ""
        return sign + frame("content_block_stop", index=self._index)

    def _call_piece(self, index: int, call_id: str, name: str, arguments: str) -> bytes:
        head = b""
        if index != self._call_index:
            self._call_index = index
            self._num_calls += 1
            head = self._open_block("tool_use", id=tool_id(call_id), name=name, input={})
        if not arguments:
            return head
        return head + _delta(self._index, "input_json_delta", "partial_json", arguments)

    def _whole_call(self, call: ToolCall) -> bytes:
        pieces = b""
        if call.index != self._call_index:
            text = json.dumps(call.arguments, ensure_ascii=False)
            pieces = self._call_piece(call.index, call.id, call.name, text)
        return pieces + self._close_block()

    def _end(self, finish: Finish) -> bytes:
        self.finish = finish
        fields: dict[str, Any] = {"delta": self.ending(self._num_calls), "usage": self.usage()}
        if self.warnings:
            fields["warnings"] = list(self.warnings)
        return self._close_block() + frame("message_delta", **fields) + frame("message_stop")


class _Whole:
    """The content blocks of an answer that is sent in one piece."""

    def __init__(self) -> None:
        self.content: list[dict[str, Any]] = []
        self.num_calls = 0

    def add(self, event: ChatEvent) -> None:
        """Take one event in."""
        if isinstance(event, ThinkingDelta):
            self._text("thinking", event.text)
        elif isinstance(event, TextDelta):
            self._text("text", event.text)
        elif isinstance(event, ToolCall):
            self.num_calls += 1
            call_id = tool_id(event.id)
            block = {"type": "tool_use", "id": call_id, "name": event.name}
            self.content.append(block | {"input": dict(event.arguments)})

    def _text(self, kind: str, text: str) -> None:
        if not text:
            return
        if not self.content or self.content[-1]["type"] != kind:
            signed = {"signature": SIGNATURE} if kind == "thinking" else {}
            self.content.append({"type": kind, kind: ""} | signed)
        self.content[-1][kind] += text


_EMPTY_BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def tool_id(own: str) -> str:
    """A call's id as this dialect's clients expect it; content.py undoes it."""
    return TOOL_ID_PREFIX + own


def _usage(fresh: int, cached: int, output: int) -> dict[str, Any]:
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }
