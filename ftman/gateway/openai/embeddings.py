"""POST /v1/embeddings: unit vectors of texts or token ids, as numbers or as base64."""

from __future__ import annotations

import base64
from typing import Any

from ftman.gateway.body import OPENAI_TEXTS, FieldError, Fields
from ftman.gateway.errors import to_json
from ftman.gateway.ollama.values import parse_keep_alive
from ftman.gateway.openai.models import find_model
from ftman.gateway.openai.no_effect import no_effect
from ftman.gateway.routes import Call, Reply
from ftman.service.prompts import ContextLengthError
from ftman.service.requests import EmbedInput, Vector

MAX_INPUTS = 2048
"""OpenAI's own limit; clients split by it."""


async def embeddings(call: Call) -> Reply:
    """One vector per input, in the order of the inputs."""
    fields = call.fields("EmbeddingRequest", OPENAI_TEXTS)
    given = fields.text("model")
    find_model(call, given)
    inputs = _inputs(fields)
    form = fields.text("encoding_format", "float").lower()
    if form not in ("float", "base64"):
        fields.invalid("encoding_format", f"must be float or base64, not {form[:20]!r}")
    dimensions = fields.integer("dimensions")
    if dimensions is not None and dimensions < 1:
        fields.invalid("dimensions", f"must be 1 or more, not {dimensions}")
    asked = EmbedInput(
        model=given,
        inputs=inputs,
        truncate=False,
        dimensions=dimensions or 0,
        strict_dimensions=True,
        keep_alive_s=parse_keep_alive(fields.get("keep_alive")),
        request_id=call.request_id,
    )
    try:
        result = await call.service.embed(asked)
    except ContextLengthError as error:
        counts = error.extra
        raise ContextLengthError(counts["n_prompt_tokens"], counts["n_ctx"], "input") from None
    call.tally.prompt_tokens = result.prompt_tokens
    value: dict[str, Any] = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": _encoded(vector, form)}
            for index, vector in enumerate(result.vectors)
        ],
        "model": given,
        "usage": {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens},
    }
    warnings = [*no_effect(fields), *result.notes]
    return Reply(
        to_json(value | ({"warnings": warnings} if warnings else {})) + b"\n",
        media_type="application/json",
    )


def _encoded(vector: Vector, form: str) -> str | list[float]:
    return base64.b64encode(vector.data).decode() if form == "base64" else vector.short_floats()


def _inputs(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    value = fields.get("input")
    if isinstance(value, str):
        return (value,)
    if value is None or value == []:
        raise FieldError("'input' is empty; send a text, texts or token ids", "input")
    if not isinstance(value, list):
        fields.wrong("input", "string or array", value)
    if all(_is_id(item) for item in value):
        return (tuple(value),)
    if len(value) > MAX_INPUTS:
        fields.invalid("input", f"holds {len(value)} inputs; at most {MAX_INPUTS} fit")
    return tuple(_one(fields, item) for item in value)


def _one(fields: Fields, item: Any) -> str | tuple[int, ...]:
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item and all(_is_id(token) for token in item):
        return tuple(item)
    if item == []:
        fields.invalid("input", "holds an empty list of token ids")
    return fields.wrong("input", "string or array of token ids", item)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
