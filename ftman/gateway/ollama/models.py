"""Native routes about installed and running models: tags, ps, show, copy, delete."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ftman.catalog.model import Model, ModelDetails
from ftman.errors import NotFoundError, UsageError
from ftman.gateway.body import OLLAMA_TEXTS, FieldError
from ftman.gateway.errors import to_json
from ftman.gateway.ollama.values import (
    not_found,
    parse_options,
    refuse_cloud,
    required_name,
)
from ftman.gateway.routes import Call, Reply, Route
from ftman.gateway.times import FOREVER_S, local_stamp
from ftman.names import is_valid_name, parse_name
from ftman.service.requests import RunningModel, Shown


async def tags(call: Call) -> Reply:
    """GET /api/tags."""
    entries = [_tag_entry(call, model) for model in await call.service.models()]
    return Reply(to_json({"models": entries}))


async def ps(call: Call) -> Reply:
    """GET /api/ps."""
    wall_s = call.service.clock.wall()
    entries = [_ps_entry(engine, wall_s) for engine in call.service.running()]
    return Reply(to_json({"models": entries}))


async def show(call: Call) -> Reply:
    """POST /api/show."""
    fields = call.fields("ShowRequest", OLLAMA_TEXTS)
    given = required_name(fields)
    verbose = fields.flag("verbose", False)
    system = fields.text("system")
    options = fields.mapping("options")
    parse_options(options)
    if not is_valid_name(given):
        raise FieldError("invalid model name", "model")
    refuse_cloud(given)
    try:
        shown = await call.service.show(given, verbose=verbose, parameters=options)
    except NotFoundError:
        raise not_found(f"model '{parse_name(given).short}' not found") from None
    agent = call.headers.get("user-agent", "")
    return Reply(to_json(_show_value(shown, system, given, agent, verbose)))


async def copy(call: Call) -> Reply:
    """POST /api/copy."""
    fields = call.fields("CopyRequest", OLLAMA_TEXTS)
    source, destination = fields.text("source"), fields.text("destination")
    for what, text in (("source", source), ("destination", destination)):
        if not is_valid_name(text):
            raise FieldError(f'{what} "{text}" is invalid', what)
    try:
        await call.service.copy(source, destination)
    except NotFoundError:
        raise not_found(f'model "{source}" not found') from None
    return Reply(media_type="")


async def delete(call: Call) -> Reply:
    """DELETE /api/delete."""
    fields = call.fields("DeleteRequest", OLLAMA_TEXTS)
    given = required_name(fields)
    if not is_valid_name(given):
        raise FieldError(f'name "{given}" is invalid', "model")
    try:
        await call.service.delete(given)
    except NotFoundError:
        raise not_found(f"model '{given}' not found") from None
    except UsageError as error:
        raise FieldError(f'name "{given}" is invalid', "model") from error
    return Reply(media_type="")


def details_value(details: ModelDetails, *, lengths: bool = False) -> dict[str, Any]:
    """The `details` object; the two lengths stand in tags only."""
    value: dict[str, Any] = {
        "parent_model": details.parent_model,
        "format": details.format,
        "family": details.family,
        "families": list(details.families) or None,
        "parameter_size": details.parameter_size,
        "quantization_level": details.quantization_level,
    }
    if lengths and details.context_length:
        value["context_length"] = details.context_length
    if lengths and details.embedding_length:
        value["embedding_length"] = details.embedding_length
    return value


def _tag_entry(call: Call, model: Model) -> dict[str, Any]:
    value: dict[str, Any] = {
        "name": model.name.short,
        "model": model.name.short,
        "modified_at": local_stamp(model.modified_wall_s),
        "size": model.size_bytes,
        "digest": model.digest,
        "details": details_value(model.details, lengths=True),
    }
    # What a checkpoint's own template shows is stored; a TEMPLATE or PARSER put over it is not.
    changed = model.template or model.parser
    capabilities = call.service.capabilities(model) if changed else model.capabilities
    if capabilities:
        value["capabilities"] = list(capabilities)
    return value | ({"ft": {"damaged": model.damaged}} if model.damaged else {})


def _ps_entry(engine: RunningModel, wall_s: float) -> dict[str, Any]:
    expires_s = wall_s + FOREVER_S if engine.expires_wall_s is None else engine.expires_wall_s
    model = engine.model
    return {
        "name": engine.name,
        "model": engine.name,
        "size": engine.size_bytes,
        "digest": model.digest if model else "",
        "details": details_value(model.details if model else ModelDetails()),
        "expires_at": local_stamp(expires_s),
        "size_vram": engine.size_vram_bytes,
        "context_length": engine.context_tokens,
        "ft": {
            "state": engine.state,
            "in_use": engine.in_use,
            "loaded_bytes": engine.loaded_bytes,
            "total_bytes": engine.total_bytes,
            "forever": engine.expires_wall_s is None,
            "kv_format": engine.kv_format,
        },
    }


def _show_value(shown: Shown, system: str, given: str, agent: str, verbose: bool) -> dict[str, Any]:
    model = shown.model
    info = dict(shown.model_info)
    if agent.startswith("GitHubCopilotChat/"):
        info["general.basename"] = given
    tensors = shown.tensors if verbose or model.details.format == "gguf" else ()
    optional = {
        "license": "\n".join(model.licenses),
        "modelfile": shown.modelfile,
        "parameters": shown.parameters,
        "template": shown.template,
        "system": system or model.system,
    }
    value: dict[str, Any] = {key: text for key, text in optional.items() if text}
    value["details"] = details_value(model.details)
    if model.messages:
        value["messages"] = [{"role": m.role, "content": m.content} for m in model.messages]
    value["model_info"] = info
    if tensors:
        value["tensors"] = [
            {
                "name": tensor.get("name"),
                "type": str(tensor.get("type")).upper(),
                "shape": tensor.get("shape"),
            }
            for tensor in tensors
        ]
    if shown.capabilities:
        value["capabilities"] = list(shown.capabilities)
    value["modified_at"] = local_stamp(model.modified_wall_s)
    if model.requires:
        value["requires"] = model.requires
    value["ft"] = {
        "chat_format": shown.chat_format,
        "reference_path": list(shown.reference_path),
        "notes": list(model.notes),
        "damaged": model.damaged,
        "source": dict(model.source),
        "effective": [asdict(item) for item in shown.effective],
    }
    return value


ROUTES = (
    Route("GET", "/api/tags", tags),
    Route("HEAD", "/api/tags", tags),
    Route("GET", "/api/ps", ps),
    Route("POST", "/api/show", show, body="whole"),
    Route("POST", "/api/copy", copy, body="whole"),
    Route("DELETE", "/api/delete", delete, body="whole"),
)
