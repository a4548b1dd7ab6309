"""Models with weights made anew here: from an installed model, or from files fetched as always.

The job, its folder and its place in the catalog; the weights are the converter child's work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ftman import files
from ftman.catalog import content
from ftman.catalog.catalog import Catalog
from ftman.catalog.model import Model, ModelChanges, ModelDetails, NewModel
from ftman.convert.messages import ConvertResult
from ftman.convert.remake import Remake, RemakeSpec, run_remake
from ftman.errors import ConflictError
from ftman.names import ModelName
from ftman.pull import disk
from ftman.pull.install import place_ftw, with_changes
from ftman.pull.jobs import JobManager
from ftman.pull.progress import Bar, Emit, Progress
from ftman.pull.pull import PullRun, PullTools
from ftman.pull.resolve import Resolved
from ftman.pull.source import ResolvedSource
from ftman.pull.threads import in_thread

Claim = Callable[[str], None]
_DIGEST = "0000000000000000000"
"""What Ollama shows for work that belongs to no blob."""


def remake_files(
    jobs: JobManager,
    name: ModelName,
    source: ResolvedSource,
    changes: ModelChanges,
    remake: Remake,
) -> AsyncIterator[Progress]:
    """Convert files, then make their weights anew; ends with "success".   Raises: FtmanError."""

    async def make(tools: PullTools, emit: Emit, claim: Claim) -> Model:
        _claim_files([*_paths(source), *remake.adapter.values()], claim)

        async def again(folder: Path, result: ConvertResult) -> ConvertResult:
            made = await _made(tools, emit, name, folder / "ftw", folder, remake)
            claim(made.ftw_id)
            await in_thread(place_ftw, tools.paths, folder / "remade", made.ftw_id)
            await in_thread(files.remove_tree, folder / "ftw")
            return made

        marked = replace(source, remake=await in_thread(_recipe, "", remake))
        run = PullRun(tools, emit, claim, remake=again)
        return await run.install(Resolved(name, marked), changes)

    return jobs.run_job("creating", "/".join(name.key), name.short, make)


def remake_model(
    jobs: JobManager,
    catalog: Catalog,
    name: ModelName,
    base: Model,
    changes: ModelChanges,
    remake: Remake,
) -> AsyncIterator[Progress]:
    """A new name whose weights are an installed model's, made anew.   Raises: FtmanError."""

    async def make(tools: PullTools, emit: Emit, claim: Claim) -> Model:
        claim(base.ftw_id)
        _claim_files(remake.adapter.values(), claim)
        recipe = await in_thread(_recipe, base.ftw_id, remake)
        text = json.dumps([list(name.key), recipe], sort_keys=True)
        folder = tools.paths.partial / hashlib.sha256(text.encode()).hexdigest()[:16]
        files.make_dir(folder)
        try:
            lock = disk.JobLock(folder / "lock")
        except files.LockedError:
            raise ConflictError(f"{name.short} is being created by another process") from None
        with lock:
            try:
                made = await _made(tools, emit, name, base.ftw_path, folder, remake)
                claim(made.ftw_id)
                emit(Progress("writing manifest", phase="install"))
                await in_thread(place_ftw, tools.paths, folder / "remade", made.ftw_id)
                new = await in_thread(_new_model, catalog, base, made, changes, recipe)
                model = await in_thread(catalog.commit, name, new)
            finally:
                # A run that is cut off begins anew: all it reads lies on this machine.
                await in_thread(files.remove_tree, folder)
        emit(Progress("success", phase="done"))
        return model

    return jobs.run_job("creating", "/".join(name.key), name.short, make)


async def _made(
    tools: PullTools, emit: Emit, name: ModelName, source: Path, folder: Path, remake: Remake
) -> ConvertResult:
    """Run the child into `folder`/remade; an earlier run's leftovers go first."""
    target = folder / "remade"
    await in_thread(files.remove_tree, target)
    bar = Bar(emit, tools.clock, Progress(remake.label, _DIGEST, phase="convert"))
    spec = RemakeSpec(name.short, source, target, remake)
    return await run_remake(spec, bar.set, tools.converter)


def _new_model(
    catalog: Catalog,
    base: Model,
    made: ConvertResult,
    changes: ModelChanges,
    recipe: Mapping[str, Any],
) -> NewModel:
    known = {field.name for field in fields(ModelDetails)}
    details: dict[str, Any] = {k: v for k, v in made.details.items() if k in known}
    details["families"] = tuple(details.get("families") or ())
    new = replace(
        content.as_new(base, catalog.info(base)),
        ftw_id=made.ftw_id,
        details=ModelDetails(**details),
        model_info=made.model_info,
        load_bytes=made.load_bytes,
        kv_bytes_per_token=made.kv_bytes_per_token,
        kv_q8_0_bytes_per_token=made.kv_q8_0_bytes_per_token,
        notes=made.notes,
        parent=base.name.short,
        source={**base.source, "remake": dict(recipe), "identity": ""},
    )
    return with_changes(new, changes)


def _recipe(base_ftw_id: str, remake: Remake) -> dict[str, Any]:
    """What makes these weights differ from the source's; part of the model's identity."""
    adapter = {name: files.sha256_file(path) for name, path in sorted(remake.adapter.items())}
    recipe = {"kind": "remake", "quantize": remake.quantize, "adapter": adapter}
    return recipe | ({"base": base_ftw_id} if base_ftw_id else {})


def _paths(source: ResolvedSource) -> list[Path]:
    return [file.path for file in source.files if file.path is not None]


def _claim_files(paths: Any, claim: Claim) -> None:
    for path in paths:
        claim(path.name.removeprefix("sha256-"))
