"""Answers of generate and chat: events to NDJSON lines or to one object, with Ollama's fields."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftman.chat.types import (
    ChatEvent,
    Finish,
    TextDelta,
    ThinkingDelta,
    TokenText,
    ToolCall,
    ToolCallDelta,
)
from ftman.errors import EngineDiedError, FtmanError
from ftman.gateway.body import FieldError
from ftman.gateway.errors import OLLAMA, encode_error, to_json
from ftman.gateway.ollama.messages import call_value
from ftman.gateway.routes import Call, Reply, StreamReply
from ftman.gateway.stream import NDJSON, ndjson
from ftman.gateway.times import nanoseconds, utc_stamp
from ftman.service.prompts import ContextLengthError

_TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the "
    "prompt, adjust the context length in settings, or use a model with a longer context length"
)
_MIN_LOGPROB = -9999.0


@dataclass
class Piece:
    """What one object of an answer brings."""

    text: str = ""
    thinking: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Piece) -> None:
        """Append, for answers in one object."""
        self.text += other.text
        self.thinking += other.thinking
        self.calls += other.calls
        self.logprobs += other.logprobs


@dataclass
class Shape:
    """Builds the objects of one reply. key: "response" (generate) or "message" (chat)."""

    call: Call
    model: str
    key: str
    keeps_context: bool = False
    notes: tuple[str, ...] = ()

    def start(self, piece: Piece) -> dict[str, Any]:
        """The fields every object begins with."""
        stamp = utc_stamp(self.call.service.clock.wall())
        head = {"model": self.model, "created_at": stamp}
        extra: dict[str, Any] = {"thinking": piece.thinking} if piece.thinking else {}
        if piece.calls:
            extra["tool_calls"] = piece.calls
        if self.key == "message":
            return head | {"message": {"role": "assistant", "content": piece.text} | extra}
        return head | {self.key: piece.text} | extra

    def delta(self, piece: Piece) -> dict[str, Any]:
        """One object of a stream."""
        value = self.start(piece) | {"done": False}
        return value | ({"logprobs": piece.logprobs} if piece.logprobs else {})

    def last(self, event: Finish, piece: Piece) -> dict[str, Any]:
        """The object with `done: true`."""
        value = self.start(piece) | {"done": True, "done_reason": event.reason}
        if self.keeps_context and event.context:
            value["context"] = list(event.context)
        usage = event.usage
        self.call.tally.prompt_tokens = usage.prompt_tokens
        self.call.tally.completion_tokens = usage.completion_tokens
        metrics = {
            "total_duration": nanoseconds(usage.total_s),
            "load_duration": nanoseconds(usage.load_s),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(usage.prefill_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(usage.decode_s),
        }
        value |= {name: number for name, number in metrics.items() if number}
        if piece.logprobs:
            value["logprobs"] = piece.logprobs
        return value | self.warning(event.notes)

    def warning(self, notes: Sequence[str] = ()) -> dict[str, Any]:
        """The field that tells what was done other than asked; not Ollama's, {} when empty."""
        every = (*self.notes, *notes)
        return {"warning": "; ".join(every)} if every else {}


def streamed_answer(shape: Shape, events: AsyncIterator[ChatEvent]) -> StreamReply:
    """The events as a stream."""
    return StreamReply(
        _lines(shape, events),
        NDJSON,
        on_error=lambda error: encode_error(OLLAMA, native_error(error)) + b"\n",
        heartbeat=lambda: ndjson(shape.start(Piece()) | {"done": False}),
    )


async def whole_answer(shape: Shape, events: AsyncIterator[ChatEvent]) -> Reply:
    """The events as one object.   Raises: FtmanError."""
    finish, whole = Finish("stop"), Piece()
    try:
        async with contextlib.aclosing(_pieces(events)) as pieces:
            async for item in pieces:
                if isinstance(item, Finish):
                    finish = item
                else:
                    whole.add(item)
    except FtmanError as error:
        raise native_error(error) from None
    return Reply(to_json(shape.last(finish, whole)))


async def _lines(shape: Shape, events: AsyncIterator[ChatEvent]) -> AsyncIterator[bytes]:
    try:
        async with contextlib.aclosing(_pieces(events)) as pieces:
            async for item in pieces:
                if isinstance(item, Finish):
                    yield ndjson(shape.last(item, Piece()))
                else:
                    yield ndjson(shape.delta(item))
    except FtmanError as error:
        raise native_error(error) from None


async def _pieces(events: AsyncIterator[ChatEvent]) -> AsyncGenerator[Piece | Finish, None]:
    """Events that say something. Fragments of a call wait, with their tokens, for the whole."""
    held: list[dict[str, Any]] = []
    async with contextlib.aclosing(events):  # type: ignore[type-var]
        async for event in events:
            if isinstance(event, Finish):
                if held:
                    yield Piece(logprobs=held)
                yield event
            elif isinstance(event, ToolCallDelta):
                held += _entries(event.tokens)
            elif isinstance(event, ToolCall):
                yield Piece(calls=[call_value(event)], logprobs=held)
                held = []
            elif isinstance(event, TextDelta | ThinkingDelta) and (event.text or event.tokens):
                entries = _entries(event.tokens)
                if isinstance(event, TextDelta):
                    yield Piece(event.text, logprobs=entries)
                else:
                    yield Piece(thinking=event.text, logprobs=entries)


def _entries(tokens: Sequence[TokenText]) -> list[dict[str, Any]]:
    return [logprob_entry(token) for token in tokens]


def logprob_entry(token: TokenText) -> dict[str, Any]:
    """One token's entry; alternatives only when there are some."""
    value: dict[str, Any] = {
        "token": token.text,
        "logprob": max(_MIN_LOGPROB, token.logprob),
        "bytes": list(token.data),
    }
    if token.top:
        value["top_logprobs"] = [
            {"token": text, "logprob": max(_MIN_LOGPROB, logprob), "bytes": list(data)}
            for text, logprob, data in token.top
        ]
    return value


def native_error(error: FtmanError) -> FtmanError:
    """The error with Ollama's text where it has one."""
    if isinstance(error, ContextLengthError):
        return FieldError(_TOO_LONG)
    # What an engine reports of itself inside a stream has no class of its own.
    broke = isinstance(error, EngineDiedError) or type(error) is FtmanError
    if broke and error.status == 500 and "running the model" not in error.message:
        return EngineDiedError(
            f"an error was encountered while running the model: {error.message}",
            hint=error.hint,
            code=error.code,
            status=error.status,
        )
    return error
