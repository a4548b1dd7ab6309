"""Answers of both completion routes, whole and streamed. One shape class per route."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ftman import __version__
from ftman.chat.types import ChatEvent, Finish, TextDelta, TokenText
from ftman.gateway.errors import OPENAI, encode_error, to_json
from ftman.gateway.openai.sampling import Shared
from ftman.gateway.routes import Call, Reply, StreamReply
from ftman.gateway.stream import KEEP_ALIVE_COMMENT, SSE, SSE_HEADERS, merge, sse

DONE = b"data: [DONE]\n\n"
MIN_LOGPROB = -9999.0


class Shape(Protocol):
    """What differs between the two routes."""

    chunk_object: str
    whole_object: str
    head: dict[str, Any]

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk's choice, where the route has one."""

    def delta(self, index: int, event: TextDelta) -> dict[str, Any]:
        """A chunk's choice with new text."""

    def end(self, index: int, reason: str) -> dict[str, Any]:
        """The choice that ends an index."""

    def whole(self, index: int, done: Collected) -> dict[str, Any]:
        """A complete choice."""


@dataclass
class Collected:
    """Everything one choice produced."""

    texts: list[str] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    finish: Finish = field(default_factory=lambda: Finish("stop"))

    def add(self, event: ChatEvent) -> None:
        """Take one event in."""
        if isinstance(event, TextDelta):
            self.texts.append(event.text)
            self.tokens.extend(event.tokens)
        elif isinstance(event, Finish):
            self.finish = event


async def answer(
    call: Call, shared: Shared, shape: Shape, streams: Sequence[AsyncIterator[ChatEvent]]
) -> Reply | StreamReply:
    """Run all choices and encode them."""
    if shared.stream:
        return StreamReply(
            _chunks(call, shared, shape, streams),
            SSE,
            on_error=lambda e: b"data: " + encode_error(OPENAI, e, call.request_id) + b"\n\n",
            heartbeat=lambda: KEEP_ALIVE_COMMENT,
            headers=SSE_HEADERS,
        )
    done = [Collected() for _ in streams]
    async with contextlib.aclosing(merge(streams)) as events:  # type: ignore[type-var]
        async for index, event in events:
            done[index].add(event)
    usage = usage_value(call, shape, [item.finish for item in done])
    choices = [shape.whole(index, item) for index, item in enumerate(done)]
    value = _frame(shape, shape.whole_object) | {"choices": choices, "usage": usage}
    notes = dict.fromkeys(note for item in done for note in item.finish.notes)
    if notes:
        value["warnings"] = list(notes)
    return Reply(to_json(value) + b"\n", media_type="application/json")


async def _chunks(
    call: Call, shared: Shared, shape: Shape, streams: Sequence[AsyncIterator[ChatEvent]]
) -> AsyncIterator[bytes]:
    opened: set[int] = set()
    finishes: dict[int, Finish] = {}
    extra = {"usage": None} if shared.include_usage else {}

    def chunk(choice: dict[str, Any]) -> bytes:
        return sse(_frame(shape, shape.chunk_object) | {"choices": [choice]} | extra)

    async with contextlib.aclosing(merge(streams)) as events:  # type: ignore[type-var]
        async for index, event in events:
            if not isinstance(event, TextDelta | Finish):
                continue
            if index not in opened:
                opened.add(index)
                first = shape.opening(index)
                if first is not None:
                    yield chunk(first)
            if isinstance(event, Finish):
                finishes[index] = event
                yield chunk(shape.end(index, event.reason))
            elif event.text or event.tokens:
                yield chunk(shape.delta(index, event))
    usage = usage_value(call, shape, [finishes[i] for i in sorted(finishes)])
    if shared.include_usage:
        yield sse(_frame(shape, shape.chunk_object) | {"choices": [], "usage": usage})
    yield DONE


def _frame(shape: Shape, kind: str) -> dict[str, Any]:
    return {"id": shape.head["id"], "object": kind} | shape.head


def usage_value(call: Call, shape: Shape, finishes: Sequence[Finish]) -> dict[str, Any]:
    """The usage object: each prompt counted once, completions summed."""
    per_prompt = getattr(shape, "num_choices", len(finishes)) or 1
    firsts = [finish.usage for finish in finishes[::per_prompt]]
    prompt = sum(usage.prompt_tokens for usage in firsts)
    completion = sum(finish.usage.completion_tokens for finish in finishes)
    call.tally.prompt_tokens, call.tally.completion_tokens = prompt, completion
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(u.cached_tokens for u in firsts)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _head(call: Call, prefix: str, model: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "created": int(call.service.clock.wall()),
        "model": model,
        "system_fingerprint": f"fp_ft_{__version__}",
    }


class ChatShape:
    """chat.completion and its chunks."""

    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def __init__(self, call: Call, model: str):
        self.head = _head(call, "chatcmpl", model)

    def opening(self, index: int) -> dict[str, Any] | None:
        """The role, once."""
        return _choice(index, {"role": "assistant", "content": ""})

    def delta(self, index: int, event: TextDelta) -> dict[str, Any]:
        """New text with its tokens' log probabilities."""
        choice = _choice(index, {"content": event.text})
        return choice | ({"logprobs": _chat_logprobs(event.tokens)} if event.tokens else {})

    def end(self, index: int, reason: str) -> dict[str, Any]:
        """The finish reason, alone."""
        return _choice(index, {}) | {"finish_reason": reason}

    def whole(self, index: int, done: Collected) -> dict[str, Any]:
        """A complete message."""
        message = {"role": "assistant", "content": "".join(done.texts), "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": _chat_logprobs(done.tokens) if done.tokens else None,
            "finish_reason": done.finish.reason,
        }


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": None}


def _chat_logprobs(tokens: Sequence[TokenText]) -> dict[str, Any]:
    return {"content": [_chat_entry(token) for token in tokens], "refusal": None}


def _chat_entry(token: TokenText) -> dict[str, Any]:
    return _chat_item(token.text, token.logprob, token.data) | {
        "top_logprobs": [_chat_item(*alternative) for alternative in token.top]
    }


def _chat_item(text: str, logprob: float, data: bytes) -> dict[str, Any]:
    return {"token": text, "logprob": max(MIN_LOGPROB, logprob), "bytes": list(data)}


class CompletionShape:
    """text_completion; the chunks bear the same name. Offsets are kept per choice."""

    chunk_object = "text_completion"
    whole_object = "text_completion"

    def __init__(self, call: Call, model: str, num_choices: int, *, with_logprobs: bool):
        self.head = _head(call, "cmpl", model)
        self.num_choices = num_choices
        self._with_logprobs = with_logprobs
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        """None: text starts at once."""
        return None

    def delta(self, index: int, event: TextDelta) -> dict[str, Any]:
        """New text."""
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + len(event.text)
        logprobs = legacy_logprobs(event.tokens, offset) if event.tokens else None
        return _text_choice(index, event.text, logprobs, None)

    def end(self, index: int, reason: str) -> dict[str, Any]:
        """The finish reason, with no text."""
        return _text_choice(index, "", None, reason)

    def whole(self, index: int, done: Collected) -> dict[str, Any]:
        """A complete text; with echo its log probabilities cover the prompt too."""
        logprobs = None
        if self._with_logprobs:
            tokens = [*(t for t in done.finish.prompt_tokens if t), *done.tokens]
            start = 0
            if not done.finish.prompt_tokens:
                start = sum(map(len, done.texts)) - sum(len(t.text) for t in done.tokens)
            logprobs = legacy_logprobs(tokens, max(0, start))
        return _text_choice(index, "".join(done.texts), logprobs, done.finish.reason)


def _text_choice(
    index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}


def legacy_logprobs(tokens: Sequence[TokenText], offset: int) -> dict[str, Any]:
    """Four arrays of equal length. The first token of all has no probability: NaN becomes null."""
    value: dict[str, list[Any]] = {
        "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
    }  # fmt: skip
    for token in tokens:
        value["text_offset"].append(offset)
        known = not math.isnan(token.logprob)
        value["tokens"].append(_legacy_text(token.text, token.data))
        value["token_logprobs"].append(max(MIN_LOGPROB, token.logprob) if known else None)
        value["top_logprobs"].append(_legacy_top(token) if known else None)
        offset += len(token.text)
    return value


def _legacy_top(token: TokenText) -> dict[str, float]:
    top: dict[str, float] = {}
    for text, logprob, data in token.top:
        top.setdefault(_legacy_text(text, data), max(MIN_LOGPROB, logprob))
    return top or {_legacy_text(token.text, token.data): max(MIN_LOGPROB, token.logprob)}


def _legacy_text(text: str, data: bytes) -> str:
    """A token that is no whole character is named by its bytes, or several would share a key."""
    if "\ufffd" not in text:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
