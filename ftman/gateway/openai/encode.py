"""Answers of both completion routes, whole and streamed; the shapes say what differs."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ftman import __version__
from ftman.chat.types import (
    ChatEvent,
    Finish,
    TextDelta,
    ThinkingDelta,
    TokenText,
    ToolCall,
    ToolCallDelta,
    Usage,
    Waiting,
)
from ftman.gateway.errors import OPENAI, encode_error, to_json
from ftman.gateway.openai.sampling import Shared
from ftman.gateway.routes import Call, Reply, StreamReply
from ftman.gateway.stream import KEEP_ALIVE_COMMENT, SSE, SSE_HEADERS, merge, sse

DONE = b"data: [DONE]\n\n"


@dataclass
class CallText:
    """A call as the wire knows it: its arguments are a text."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class Collected:
    """Everything one choice produced."""

    texts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    calls: dict[int, CallText] = field(default_factory=dict)
    finish: Finish = field(default_factory=lambda: Finish("stop"))
    whole_calls: int = 0
    num_tokens: int = 0
    prompt_tokens: int = 0

    def add(self, event: ChatEvent) -> None:
        """Take one event in."""
        if isinstance(event, TextDelta):
            self.texts.append(event.text)
            self.tokens.extend(event.tokens)
        elif isinstance(event, ThinkingDelta):
            self.thinking.append(event.text)
        elif isinstance(event, ToolCallDelta):
            call = self.calls.setdefault(event.index, CallText())
            call.id += event.id
            call.name += event.name
            call.arguments += event.arguments
        elif isinstance(event, ToolCall):
            self.whole_calls += 1
        elif isinstance(event, Finish):
            self.finish = event
        elif isinstance(event, Waiting) and event.phase == "prefill":
            self.prompt_tokens = event.total
        self.num_tokens += len(getattr(event, "tokens", ()))

    def calls_in_order(self) -> list[CallText]:
        """The calls by index."""
        return [self.calls[index] for index in sorted(self.calls)]


class Shape(Protocol):
    """What differs between the two routes."""

    chunk_object: str
    whole_object: str
    head: dict[str, Any]

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk's choice, where the route has one."""

    def delta(self, index: int, event: ChatEvent) -> dict[str, Any] | None:
        """A chunk's choice with something new, None where nothing is to be told."""

    def end(self, index: int, done: Collected) -> dict[str, Any]:
        """The choice that ends an index."""

    def whole(self, index: int, done: Collected) -> dict[str, Any]:
        """A complete choice."""


def pieces_of(event: ChatEvent, calls: dict[int, CallText]) -> Iterator[ChatEvent]:
    """The event; before the end of a call, a delta with what its deltas have not told.

    Clients parse the joined arguments, so even a call without any needs its "{}".
    """
    if isinstance(event, ToolCall):
        known = calls.get(event.index)
        if known is None or not known.arguments:
            text = json.dumps(dict(event.arguments), ensure_ascii=False, separators=(",", ":"))
            opening = (event.id, event.name) if known is None else ("", "")
            yield ToolCallDelta(event.index, *opening, text)
    yield event


async def answer(
    call: Call,
    shared: Shared,
    shape: Shape,
    streams: Sequence[AsyncIterator[ChatEvent]],
    warnings: Sequence[str] = (),
) -> Reply | StreamReply:
    """Run all choices and encode them. warnings: what the client must know about its request."""
    if shared.stream:
        return StreamReply(
            _Chunks(call, shared, shape, warnings, len(streams)).frames(streams),
            SSE,
            on_error=lambda e: b"data: " + encode_error(OPENAI, e, call.request_id) + b"\n\n",
            heartbeat=lambda: KEEP_ALIVE_COMMENT,
            headers=SSE_HEADERS,
        )
    done = [Collected() for _ in streams]
    async with contextlib.aclosing(merge(streams)) as events:  # type: ignore[type-var]
        async for index, event in events:
            for piece in pieces_of(event, done[index].calls):
                done[index].add(piece)
    usage = usage_value(call, shape, [item.finish for item in done])
    choices = [shape.whole(index, item) for index, item in enumerate(done)]
    value = _frame(shape, shape.whole_object) | {"choices": choices, "usage": usage}
    told = dict.fromkeys((*warnings, *(note for item in done for note in item.finish.notes)))
    if told:
        value["warnings"] = list(told)
    return Reply(to_json(value) + b"\n", media_type="application/json")


class _Chunks:
    """The chunks of one stream."""

    def __init__(
        self, call: Call, shared: Shared, shape: Shape, warnings: Sequence[str], num_choices: int
    ):
        self._call = call
        self._shared = shared
        self._shape = shape
        self._warnings = warnings
        self._done = [Collected() for _ in range(num_choices)]
        self._opened: set[int] = set()

    async def frames(self, streams: Sequence[AsyncIterator[ChatEvent]]) -> AsyncIterator[bytes]:
        async with contextlib.aclosing(merge(streams)) as events:  # type: ignore[type-var]
            async for index, event in events:
                for piece in pieces_of(event, self._done[index].calls):
                    for frame in self._of(index, piece):
                        yield frame
        usage = usage_value(self._call, self._shape, [item.finish for item in self._done])
        if self._shared.include_usage:
            head = _frame(self._shape, self._shape.chunk_object)
            yield sse(head | {"choices": [], "usage": usage})
        yield DONE

    def _of(self, index: int, event: ChatEvent) -> Iterator[bytes]:
        done = self._done[index]
        done.add(event)
        if isinstance(event, Waiting):
            return
        if index not in self._opened:
            self._opened.add(index)
            first = self._shape.opening(index)
            if first is not None:
                yield self._chunk(first)
        if isinstance(event, Finish):
            told = list(dict.fromkeys((*self._warnings, *event.notes)))
            more = {"warnings": told} if told else {}
            yield self._chunk(self._shape.end(index, done), more)
            return
        choice = self._shape.delta(index, event)
        if choice is not None:
            yield self._chunk(choice)

    def _chunk(self, choice: dict[str, Any], more: dict[str, Any] | None = None) -> bytes:
        value = _frame(self._shape, self._shape.chunk_object) | {"choices": [choice]}
        if self._shared.continuous_usage:
            value["usage"] = self._usage_so_far()
        elif self._shared.include_usage:
            value["usage"] = None
        return sse(value | (more or {}))

    def _usage_so_far(self) -> dict[str, Any]:
        prompt = self._done[0].prompt_tokens
        completion = sum(
            item.finish.usage.completion_tokens or item.num_tokens for item in self._done
        )
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }


def _frame(shape: Shape, kind: str) -> dict[str, Any]:
    return {"id": shape.head["id"], "object": kind} | shape.head


def usage_value(call: Call, shape: Shape, finishes: Sequence[Finish]) -> dict[str, Any]:
    """The usage object: each prompt counted once, completions summed."""
    per_prompt = getattr(shape, "num_choices", len(finishes)) or 1
    firsts: list[Usage] = [finish.usage for finish in finishes[::per_prompt]]
    prompt = sum(usage.prompt_tokens for usage in firsts)
    completion = sum(finish.usage.completion_tokens for finish in finishes)
    reasoning = sum(finish.usage.thinking_tokens for finish in finishes)
    call.tally.prompt_tokens, call.tally.completion_tokens = prompt, completion
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(u.cached_tokens for u in firsts)},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def answer_head(call: Call, prefix: str, model: str) -> dict[str, Any]:
    """What stands in every chunk of an answer; ids are random, or restarts would repeat them."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "created": int(call.service.clock.wall()),
        "model": model,
        "system_fingerprint": f"fp_ft_{__version__}",
    }
