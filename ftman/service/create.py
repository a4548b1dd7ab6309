"""Building models: from an installed or pullable one, or from uploaded files; weights made anew
where a request asks for another quantisation or an adapter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path

from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model, ModelChanges
from ftman.chat.formats.registry import format_named
from ftman.chat.go_template import GoTemplate
from ftman.convert.remake import Remake
from ftman.errors import IntegrityError, NotFoundError, UnsupportedError, UsageError
from ftman.names import parse_name, printable
from ftman.pull.folder import files_as_source
from ftman.pull.jobs import JobManager
from ftman.pull.progress import Progress
from ftman.pull.remake import remake_files, remake_model
from ftman.service.options import option_notes
from ftman.service.requests import CreateRequest

QUANTISATIONS = ("Q8_0", "Q4_0", "MXFP4")
"""What weights can be made of here. Other engines' K-quants are read, not written."""
_ADAPTER_SUFFIXES = (".gguf", ".safetensors")


class Creator:
    """Builds models; holds nothing of them."""

    def __init__(self, catalog: Catalog, jobs: JobManager):
        self._catalog = catalog
        self._jobs = jobs

    async def create(self, request: CreateRequest) -> AsyncGenerator[Progress, None]:
        """Build a model; ends with "success".   Raises: FtmanError."""
        _check(request)
        remake = await asyncio.to_thread(self._remake_of, request)
        for text in _warnings(request.changes):
            yield Progress(f"warning: {text}")
        if request.from_:
            steps = self._from_model(request, remake)
        elif request.files:
            steps = self._from_files(request, remake)
        else:
            raise UsageError("neither 'from' or 'files' was specified")
        try:
            async with contextlib.aclosing(steps):
                async for step in steps:
                    yield step
        except IntegrityError as error:
            if error.code != "bad_format" or not (request.files or request.adapters):
                raise
            # It is the request that brought these bytes, not a server behind us.
            hint = "Upload a whole GGUF or safetensors file."
            raise UsageError(error.message, hint=hint, code=error.code) from None

    async def _from_files(
        self, request: CreateRequest, remake: Remake | None
    ) -> AsyncGenerator[Progress, None]:
        name = parse_name(request.name)
        paths = await asyncio.to_thread(self._blob_paths, request.files)
        source = await asyncio.to_thread(files_as_source, paths, f"create:{name.short}")
        yield Progress("parsing GGUF" if source.kind == "gguf" else "converting model")
        steps = (
            self._jobs.install_files(name, paths, request.changes)
            if remake is None
            else remake_files(self._jobs, name, source, request.changes, remake)
        )
        async with contextlib.aclosing(steps):  # type: ignore[type-var]
            async for step in steps:
                yield step

    async def _from_model(
        self, request: CreateRequest, remake: Remake | None
    ) -> AsyncGenerator[Progress, None]:
        try:
            base = self._catalog.find(request.from_)
        except NotFoundError:
            pulling = self._jobs.pull(request.from_)
            async with contextlib.aclosing(pulling):  # type: ignore[type-var]
                async for step in pulling:
                    if step.status != "success":
                        yield step
            base = self._catalog.find(request.from_)
        name = parse_name(request.name)
        steps: AsyncIterator[Progress] = (
            self._derived(request, base)
            if remake is None
            else remake_model(self._jobs, self._catalog, name, base, request.changes, remake)
        )
        async with contextlib.aclosing(steps):  # type: ignore[type-var]
            async for step in steps:
                yield step

    async def _derived(self, request: CreateRequest, base: Model) -> AsyncGenerator[Progress, None]:
        """A new name over the base's own weights."""
        before = {layer.digest for layer in base.layers}
        made = await asyncio.to_thread(
            self._catalog.create_from, base, parse_name(request.name), request.changes
        )
        for layer in made.layers:
            known = "using existing" if layer.digest in before else "creating new"
            yield Progress(f"{known} layer {layer.digest}")
        yield Progress("writing manifest")
        yield Progress("success")

    def _remake_of(self, request: CreateRequest) -> Remake | None:
        quantize = request.quantize.lower()
        if not quantize and not request.adapters:
            return None
        return Remake(quantize, self._blob_paths(request.adapters))

    def _blob_paths(self, wanted: Mapping[str, str]) -> dict[str, Path]:
        paths: dict[str, Path] = {}
        for name, digest in wanted.items():
            if not _is_clean_path(name):
                raise UsageError("file path must be relative")
            if not digest:
                raise UsageError("invalid digest format")
            if not self._catalog.blobs.has(digest):
                raise UsageError(f"blob {printable(digest)} of {name!r} has not been uploaded")
            paths[name] = self._catalog.blobs.path(digest)
        return paths


def _warnings(changes: ModelChanges) -> list[str]:
    """What is kept and shown, and has no effect here."""
    found = option_notes(changes.parameters or {})
    if changes.renderer:
        found.append(
            f"RENDERER {printable(changes.renderer)} is kept and shown; the model's template "
            "renders its prompts"
        )
    if changes.parser and format_named(changes.parser) is None:
        found.append(
            f"PARSER {printable(changes.parser)} is not known here; the model's template decides "
            "how its replies are read"
        )
    return found


def _check(request: CreateRequest) -> None:
    if request.draft_files:
        raise UnsupportedError("draft models are not built yet in this version")
    wanted = request.quantize
    if wanted and wanted.upper() not in QUANTISATIONS:
        raise UsageError(
            f"unsupported quantization type {printable(wanted[:40])} - supported types are "
            + ", ".join(QUANTISATIONS)
        )
    weights = [name for name in request.adapters if name.lower().endswith(_ADAPTER_SUFFIXES)]
    if len(weights) > 1:
        raise UsageError("only one adapter is currently supported")
    if request.changes.template:
        GoTemplate.parse(request.changes.template)


def _is_clean_path(name: str) -> bool:
    parts = name.split("/")
    return (
        bool(name) and "\\" not in name and "\0" not in name and not ({"", ".", ".."} & set(parts))
    )
