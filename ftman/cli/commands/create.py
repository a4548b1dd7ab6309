"""`ft create MODEL -f Modelfile`: build a model from an installed one or from files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ftman import files
from ftman.catalog.modelfile import TEXT_LIMIT_BYTES, Modelfile, parse_modelfile
from ftman.cli.progress import follow
from ftman.cli.session import Session
from ftman.cli.sources import adapter_files, resolve_sources, upload
from ftman.errors import UnsupportedError, UsageError
from ftman.names import is_valid_name, printable

DEFAULT_NAME = "Modelfile"


def run(args: argparse.Namespace, session: Session) -> int:
    """Parse the Modelfile here, send what it says to the manager, show progress."""
    if not is_valid_name(args.model):
        raise UsageError(f"invalid model name: {printable(args.model)}")
    data, name, folder = _read(args.file)
    modelfile = parse_modelfile(data, name)
    _refuse_unbuilt(args, modelfile)
    for warning in modelfile.warnings:
        session.out.note(warning)
    sources = resolve_sources(modelfile.sources, folder)
    adapter = adapter_files(modelfile.adapters[-1], folder) if modelfile.adapters else {}
    with session.manager() as manager:
        body = {"model": args.model, "stream": True, **_request(modelfile)}
        if args.quantize:
            body["quantize"] = args.quantize
        if adapter:
            body["adapters"] = upload(manager, session, adapter)
        if sources.model:
            body["from"] = sources.model
        else:
            body["files"] = upload(manager, session, sources.files)
        follow(manager.stream("/api/create", body), session.out)
    return 0


def _read(file: str | None) -> tuple[bytes, str, Path]:
    if file == "-":
        return sys.stdin.buffer.read(), "stdin", Path.cwd()
    path = Path(file or DEFAULT_NAME).expanduser()
    if file is None and not path.exists():
        raise UsageError(
            "no Modelfile or safetensors files found", hint="Name one: ft create MODEL -f FILE"
        )
    try:
        return files.read_bytes(path, limit=TEXT_LIMIT_BYTES), path.name, path.absolute().parent
    except OSError as error:
        raise UsageError(
            "specified Modelfile wasn't found", hint=f"{path}: {error.strerror}"
        ) from None


def _refuse_unbuilt(args: argparse.Namespace, modelfile: Modelfile) -> None:
    if args.experimental:
        raise UnsupportedError(
            "--experimental is for another engine's files",
            hint="Leave it out: safetensors folders are read without it.",
        )
    if args.draft_quantize and not modelfile.drafts:
        raise UsageError("--draft-quantize requires a DRAFT model")
    if args.quantize:
        from ftman.service.create import QUANTISATIONS  # takes tenths of a second to load

        if args.quantize.upper() not in QUANTISATIONS:
            raise UsageError(
                f"--quantize {printable(args.quantize)}: weights are made of "
                f"{', '.join(QUANTISATIONS).lower()} only"
            )
    if modelfile.drafts:
        raise UnsupportedError(
            f"DRAFT {modelfile.drafts[0]}: draft models are not built yet in this version",
            hint="Remove the DRAFT line; answers are the same without it, only slower.",
        )


def _request(modelfile: Modelfile) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for key in ("template", "system", "renderer", "parser", "requires"):
        value = modelfile.last(key)
        if value is not None:
            body[key] = value
    if modelfile.parameters:
        body["parameters"] = modelfile.parameters
    if modelfile.licenses:
        body["license"] = list(modelfile.licenses)
    if modelfile.messages:
        body["messages"] = [{"role": m.role, "content": m.content} for m in modelfile.messages]
    return body
