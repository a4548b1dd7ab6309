"""POST /api/embed and the older /api/embeddings."""

from __future__ import annotations

from typing import Any

from ftman.chat.types import Options
from ftman.errors import FtmanError, NotFoundError, UsageError
from ftman.gateway.body import OLLAMA_TEXTS, FieldError, Fields
from ftman.gateway.errors import to_json
from ftman.gateway.ollama.values import (
    not_found,
    parse_keep_alive,
    parse_options,
    refuse_cloud,
)
from ftman.gateway.routes import Call, Reply, Route
from ftman.gateway.times import nanoseconds
from ftman.names import is_valid_name
from ftman.service.options import option_notes
from ftman.service.prompts import ContextLengthError
from ftman.service.requests import EmbedInput, EmbedResult

_TOO_LONG = "the input length exceeds the context length"


async def embed(call: Call) -> Reply:
    """POST /api/embed: any number of inputs, unit vectors."""
    fields = call.fields("EmbedRequest", OLLAMA_TEXTS)
    given = fields.text("model")
    inputs = _inputs(fields)
    truncate, dimensions = fields.flag("truncate", True), fields.integer("dimensions") or 0
    options, keep_alive_s, notes = _load_settings(fields)
    if not given:
        raise not_found("model '' not found")
    _find(call, given)
    try:
        result = await call.service.embed(
            EmbedInput(
                model=given,
                inputs=inputs,
                truncate=truncate,
                dimensions=max(0, dimensions),
                options=options,
                keep_alive_s=keep_alive_s,
                request_id=call.request_id,
            )
        )
    except ContextLengthError:
        raise FieldError(_TOO_LONG, "input") from None
    except UsageError as error:
        raise _worded(error, 400) from None
    if not inputs:
        return Reply(to_json({"model": given, "embeddings": []} | _warning(notes)))
    call.tally.prompt_tokens = result.prompt_tokens
    return Reply(to_json(_embed_value(given, result, notes)))


async def embeddings(call: Call) -> Reply:
    """POST /api/embeddings: one prompt, the vector as pooled, not brought to length 1."""
    fields = call.fields("EmbeddingRequest", OLLAMA_TEXTS)
    given, prompt = fields.text("model"), fields.text("prompt")
    options, keep_alive_s, notes = _load_settings(fields)
    if not given:
        raise FieldError("model is required", "model")
    _find(call, given)
    try:
        result = await call.service.embed(
            EmbedInput(
                model=given,
                inputs=(prompt,) if prompt else (),
                truncate=False,
                normalize=False,
                options=options,
                keep_alive_s=keep_alive_s,
                request_id=call.request_id,
            )
        )
    except ContextLengthError as error:
        raise FieldError(f"{_TOO_LONG}: {error.message}", "prompt", status=500) from None
    except UsageError as error:
        raise _worded(error, 500) from None
    call.tally.prompt_tokens = result.prompt_tokens
    numbers = result.vectors[0].floats() if result.vectors else []
    return Reply(to_json({"embedding": numbers} | _warning((*notes, *result.notes))))


def _inputs(fields: Fields) -> tuple[str, ...]:
    """`input`: a text or texts. "" and [] mean that the model is only loaded."""
    value = fields.get("input")
    if value is None or value == "":
        return ()
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise FieldError("invalid input type", "input")
    return tuple(values)


def _load_settings(fields: Fields) -> tuple[Options, float | None, tuple[str, ...]]:
    options = fields.mapping("options")
    keep_alive_s = parse_keep_alive(fields.get("keep_alive"))
    return parse_options(options), keep_alive_s, tuple(option_notes(options))


def _find(call: Call, given: str) -> None:
    """Raises: FtmanError with the texts of these two routes."""
    if not is_valid_name(given):
        raise FieldError("invalid model name", "model")
    refuse_cloud(given)
    try:
        call.service.find(given)
    except NotFoundError:
        raise not_found(f'model "{given}" not found, try pulling it first') from None
    call.tally.model = given


def _embed_value(given: str, result: EmbedResult, notes: tuple[str, ...]) -> dict[str, Any]:
    value: dict[str, Any] = {
        "model": given,
        "embeddings": [vector.short_floats() for vector in result.vectors],
    }
    counts = {
        "total_duration": nanoseconds(result.usage.total_s),
        "load_duration": nanoseconds(result.usage.load_s),
        "prompt_eval_count": result.prompt_tokens,
    }
    value |= {name: number for name, number in counts.items() if number}
    return value | _warning((*notes, *result.notes))


def _worded(error: UsageError, status: int) -> FtmanError:
    if error.code == "not_a_number":
        return FieldError("embedding contains NaN or Inf values", "input", status=status)
    return error


def _warning(notes: tuple[str, ...]) -> dict[str, str]:
    return {"warning": "; ".join(notes)} if notes else {}


ROUTES = (
    Route("POST", "/api/embed", embed, body="whole"),
    Route("POST", "/api/embeddings", embeddings, body="whole"),
)
