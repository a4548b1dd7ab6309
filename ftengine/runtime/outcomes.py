"""How requests end: an exception as an event for its client, and all events as one result."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from ftengine.errors import CapacityError, EngineError
from ftengine.protocol import ErrorEvent, Event, FinishEvent, TokenEvent, TokenLogprob


@dataclass(frozen=True)
class Result:
    """Everything one request answered, in one piece. Exactly one of finish and error is set."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: FinishEvent | None
    error: ErrorEvent | None


def error_event(error: Exception) -> ErrorEvent:
    """What a client is told of an exception that ended its request."""
    if isinstance(error, EngineError):
        return ErrorEvent(error.code, error.message, error.retryable)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
        short = CapacityError(
            f"memory ran out inside a step ({error}); use a smaller context, fewer parallel "
            f"requests or fewer tokens per step",
            code="out_of_memory",
        )
        return ErrorEvent(short.code, short.message, retryable=True)
    return ErrorEvent("engine_error", f"the step failed: {type(error).__name__}: {error}")


def result_of(events: Items[Event]) -> Result:
    """All events of an ended request in one piece."""
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    last = events[-1]
    return Result(
        token_ids=tuple(token for event in tokens for token in event.token_ids),
        logprobs=tuple(item for event in tokens for item in event.logprobs),
        finish=last if isinstance(last, FinishEvent) else None,
        error=last if isinstance(last, ErrorEvent) else None,
    )
