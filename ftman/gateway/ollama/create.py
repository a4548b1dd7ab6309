"""POST /api/create: the request as a CreateRequest; what it does is the service's business."""

from __future__ import annotations

from ftman.catalog.model import ModelChanges
from ftman.chat.types import Message
from ftman.errors import FtmanError
from ftman.gateway.body import OLLAMA_TEXTS, FieldError, Fields
from ftman.gateway.ollama.progress import progress_reply
from ftman.gateway.ollama.values import refuse_cloud
from ftman.gateway.routes import Call, Reply, Route, StreamReply
from ftman.names import is_valid_name
from ftman.service.requests import CreateRequest

_INFO_TEXTS = ("model_family", "base_name", "quantization_level", "parameter_size")
_INFO_NUMBERS = ("context_length", "embedding_length")


async def create(call: Call) -> Reply | StreamReply:
    """POST /api/create."""
    fields = call.fields("CreateRequest", OLLAMA_TEXTS)
    given = fields.text("model") or fields.text("name")
    stream = fields.flag("stream", True)
    request = CreateRequest(
        name=given,
        from_=fields.text("from"),
        files=_string_map(fields, "files"),
        changes=_changes(fields),
        quantize=fields.text("quantize") or fields.text("quantization"),
        adapters=_string_map(fields, "adapters"),
        draft_files=_string_map(fields, "draft_files"),
    )
    if not is_valid_name(given):
        raise FieldError("invalid model name", "model")
    _refuse(fields, request)
    call.tally.model = given
    return await progress_reply(call.service.create(request), stream)


def _refuse(fields: Fields, request: CreateRequest) -> None:
    """What cannot be had here.   Raises: FieldError, FtmanError."""
    if fields.text("remote_host"):
        if request.draft_files:
            raise FieldError("DRAFT cannot be used with remote models", "draft_files")
        raise FtmanError(
            "ollama cloud is disabled: remote model is unavailable", status=403, code="no_cloud"
        )
    if fields.text("draft_quantize") and not request.draft_files:
        raise FieldError("--draft-quantize requires a DRAFT model", "draft_quantize")
    _check_info(fields.child("info"))
    if fields.has("info"):
        raise FieldError("info describes models on a remote host; leave it out", "info")
    if request.from_:
        refuse_cloud(request.from_)


def _check_info(info: Fields) -> None:
    for key in _INFO_TEXTS:
        if info.get(key) is not None and not isinstance(info.get(key), str):
            raise FieldError(f'info field "{key}" must be a string', "info")
    for key in _INFO_NUMBERS:
        value = info.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FieldError(f'info field "{key}" must be a number', "info")
        if value < 0 or value != int(value):
            raise FieldError(f'info field "{key}" must be a non-negative integer', "info")


def _changes(fields: Fields) -> ModelChanges:
    licenses = fields.get("license")
    if isinstance(licenses, str):
        licenses = [licenses] if licenses else []
    elif licenses is not None:
        licenses = list(fields.strings("license"))
    messages = tuple(
        Message(item.text("role").lower(), item.text("content"))
        for item in fields.objects("messages", "CreateRequest.messages")
    )
    return ModelChanges(
        template=fields.text("template") or None,
        system=fields.text("system") or None,
        parameters=fields.mapping("parameters") or None,
        licenses_added=tuple(licenses or ()),
        messages=messages or None,
        renderer=fields.text("renderer") or None,
        parser=fields.text("parser") or None,
        requires=fields.text("requires") or None,
    )


def _string_map(fields: Fields, name: str) -> dict[str, str]:
    values = fields.mapping(name)
    for value in values.values():
        if not isinstance(value, str):
            fields.wrong(name, "string", value)
    return values


ROUTES = (Route("POST", "/api/create", create, body="whole"),)
