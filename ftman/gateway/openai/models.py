"""GET /v1/models: one shape that satisfies OpenAI's and Anthropic's clients."""

from __future__ import annotations

from typing import Any

from ftman.catalog.model import Model
from ftman.errors import NotFoundError, UsageError
from ftman.gateway.body import FieldError
from ftman.gateway.errors import to_json
from ftman.gateway.routes import Call, Reply
from ftman.gateway.times import utc_stamp
from ftman.names import printable


async def list_models(call: Call) -> Reply:
    """Every installed model, newest first."""
    data = [_element(call, model, model.name.short) for model in await call.service.models()]
    value = {
        "object": "list",
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
    return Reply(to_json(value) + b"\n", media_type="application/json")


async def one_model(call: Call) -> Reply:
    """One model; the id may hold slashes, and the path may end in one."""
    given = call.tail.removesuffix("/")
    model = find_model(call, given)
    return Reply(to_json(_element(call, model, given)) + b"\n", media_type="application/json")


def find_model(call: Call, given: str) -> Model:
    """The installed model of a request.   Raises: FieldError 404 with code model_not_found."""
    if not given:
        raise FieldError("'model' is missing: name an installed model", "model")
    try:
        model = call.service.find(given)
    except (NotFoundError, UsageError):
        raise FieldError(
            f"model '{printable(given)}' not found", "model", code="model_not_found", status=404
        ) from None
    call.tally.model = given
    return model


def _element(call: Call, model: Model, model_id: str) -> dict[str, Any]:
    try:
        context_tokens = call.service.context_tokens(model)
    except UsageError:  # a PARAMETER of a wrong type: told when it is used, and no other's trouble
        context_tokens = model.details.context_length
    return {
        "id": model_id,
        "object": "model",
        "created": int(model.modified_wall_s),
        "owned_by": model.name.namespace,
        "type": "model",
        "display_name": model.name.short,
        "created_at": utc_stamp(int(model.modified_wall_s)),
        "max_model_len": context_tokens,
        "context_length": context_tokens,
        "lifecycle": "active",
        "max_input_tokens": context_tokens,
        "max_tokens": context_tokens,
    }
