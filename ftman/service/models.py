"""What can be said and done about installed models: show, create, copy, delete."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model
from ftman.catalog.modelfile import print_modelfile
from ftman.chat.go_template import GoTemplate
from ftman.chat.render import ChatTemplate, capabilities_of
from ftman.errors import NotFoundError, UnsupportedError, UsageError
from ftman.names import parse_name
from ftman.pull.jobs import JobManager
from ftman.pull.progress import Progress
from ftman.service.prompts import jinja_text
from ftman.service.requests import CreateRequest, Shown

_HIDDEN_KEYS = ("general.name", "tokenizer.chat_template")
_REFERENCE_NOTE = "reference path"
_PARAMETER_WIDTH = 30


class Models:
    """Installed models as people and dialects see them."""

    def __init__(self, catalog: Catalog, jobs: JobManager):
        self._catalog = catalog
        self._jobs = jobs

    async def show(self, name: str, *, verbose: bool) -> Shown:
        """Everything about one model.   Raises: NotFoundError, IntegrityError."""
        model = self._catalog.find(name)
        info = await asyncio.to_thread(self._catalog.info, model, verbose=verbose)
        jinja = "" if model.template else jinja_text(model)
        return Shown(
            model=model,
            modelfile=print_modelfile(model),
            parameters=parameters_text(model.parameters),
            template=model.template or jinja or "{{ .Prompt }}",
            model_info={k: v for k, v in info.model_info.items() if k not in _HIDDEN_KEYS},
            tensors=info.tensors,
            capabilities=capabilities_of_model(model),
            reference_path=_reference_formats(model),
        )

    async def create(self, request: CreateRequest) -> AsyncGenerator[Progress, None]:
        """Build a model; ends with "success".   Raises: FtmanError."""
        _refuse_unbuilt(request)
        _check_template(request.changes.template)
        name = parse_name(request.name)
        if request.from_:
            async with contextlib.aclosing(self._from_model(request)) as steps:
                async for step in steps:
                    yield step
        elif request.files:
            paths = await asyncio.to_thread(self._blob_paths, request.files)
            yield Progress("parsing GGUF" if _is_gguf(paths) else "converting model")
            installing = self._jobs.install_files(name, paths, request.changes)
            async with contextlib.aclosing(installing):  # type: ignore[type-var]
                async for step in installing:
                    yield step
        else:
            raise UsageError("neither 'from' or 'files' was specified")

    async def _from_model(self, request: CreateRequest) -> AsyncGenerator[Progress, None]:
        try:
            base = self._catalog.find(request.from_)
        except NotFoundError:
            pulling = self._jobs.pull(request.from_)
            async with contextlib.aclosing(pulling):  # type: ignore[type-var]
                async for step in pulling:
                    if step.status != "success":
                        yield step
            base = self._catalog.find(request.from_)
        before = {layer.digest for layer in base.layers}
        made = await asyncio.to_thread(
            self._catalog.create_from, base, parse_name(request.name), request.changes
        )
        for layer in made.layers:
            known = "using existing" if layer.digest in before else "creating new"
            yield Progress(f"{known} layer {layer.digest}")
        yield Progress("writing manifest")
        yield Progress("success")

    def _blob_paths(self, wanted: Mapping[str, str]) -> dict[str, Path]:
        paths: dict[str, Path] = {}
        for name, digest in wanted.items():
            if not _is_clean_path(name):
                raise UsageError("file path must be relative")
            if not digest:
                raise UsageError("invalid digest format")
            if not self._catalog.blobs.has(digest):
                raise UsageError(f"blob {digest} of {name!r} has not been uploaded")
            paths[name] = self._catalog.blobs.path(digest)
        return paths


def capabilities_of_model(model: Model) -> tuple[str, ...]:
    """Stored capabilities, and those its template shows."""
    found = dict.fromkeys(model.capabilities or ("completion",))
    try:
        jinja = "" if model.template else jinja_text(model)
        found |= dict.fromkeys(capabilities_of(ChatTemplate(go=model.template, jinja=jinja)))
    except UsageError:
        pass  # a template that cannot be parsed shows nothing; using it tells the error
    return tuple(found)


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """PARAMETERs as `show` prints them: one line each, strings quoted."""
    lines = []
    for key, value in parameters.items():
        for item in value if isinstance(value, list | tuple) else [value]:
            lines.append(f"{key:<{_PARAMETER_WIDTH}} {_go_value(item)}")
    return "\n".join(lines)


def _go_value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _refuse_unbuilt(request: CreateRequest) -> None:
    if request.quantize:
        raise UnsupportedError(
            f"quantizing to {request.quantize} is not built yet in this version",
            hint="Create from files that are quantized already.",
        )
    if request.adapters:
        raise UnsupportedError("adapters (LoRA) are not built yet in this version")
    if request.draft_files:
        raise UnsupportedError("draft models are not built yet in this version")


def _check_template(template: str | None) -> None:
    if template:
        GoTemplate.parse(template)


def _is_clean_path(name: str) -> bool:
    parts = name.split("/")
    return (
        bool(name) and "\\" not in name and "\0" not in name and not ({"", ".", ".."} & set(parts))
    )


def _is_gguf(paths: Mapping[str, Path]) -> bool:
    return any(name.lower().endswith(".gguf") for name in paths)


def _reference_formats(model: Model) -> tuple[str, ...]:
    """Formats without a fast kernel, as the converter noted them."""
    found: list[str] = []
    for note in model.notes:
        if _REFERENCE_NOTE in note:
            found.append(note)
    return tuple(found)
