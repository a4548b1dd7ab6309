"""Models as folders, for machines without a network: writing one out, taking one in.

A folder holds the manifest, its small blobs and the weights, each under the name that its digest
gives it, so that nothing need be believed. `ft-model.json` is written last: a folder without it is
not complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from ftman import files
from ftman.catalog.catalog import Catalog
from ftman.catalog.manifest import FTW_TYPE, MANIFEST_LIMIT_BYTES, Layer, Manifest, is_ftw_id
from ftman.catalog.model import Model
from ftman.catalog.verify import INDEX_NAME, read_index, verify_folder
from ftman.errors import ConflictError, IntegrityError, NotFoundError, UsageError
from ftman.names import ModelName, parse_name
from ftman.pull import disk
from ftman.pull.install import place_ftw
from ftman.pull.jobs import JobManager
from ftman.pull.progress import Bar, Emit, Progress
from ftman.pull.pull import PullTools
from ftman.pull.threads import in_thread

HEAD_NAME, MANIFEST_NAME, FORMAT, VERSION = "ft-model.json", "manifest.json", "ft-model", 1
BLOB_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class Exported:
    """A model in a folder. Units: bytes of its weights."""

    folder: Path
    name: ModelName
    manifest: Manifest
    data: bytes
    weights: Layer

    @property
    def ftw_path(self) -> Path:
        """Where its weights lie."""
        return self.folder / "ftw" / self.weights.hex


def is_exported(folder: Path) -> bool:
    """Whether a folder holds a model that was written out."""
    return (folder / HEAD_NAME).is_file()


def require_new(folder: Path) -> None:
    """Raises: ConflictError where something is in the place of a folder to be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(f"{folder} is there already", hint="Name a new or an empty folder.")


def export_model(
    catalog: Catalog, model: Model, folder: Path, on_bytes: Callable[[int], None]
) -> None:
    """Write an installed model to a new or empty folder; all of it, or nothing.

    Raises: ConflictError, IntegrityError for a damaged model, CannotFitError, OSError.
    """
    if model.damaged:
        raise IntegrityError(
            f"{model.name.short} is damaged: {model.damaged}",
            hint=f"Mend it first: ft verify {model.name.short} --repair",
        )
    require_new(folder)
    what, hint = f"exporting {model.name.short}", "Free some space there, or name another disk."
    disk.require_space(folder, model.size_bytes, 0, what, hint=hint)
    try:
        _write_out(catalog, model, folder, on_bytes)
    except BaseException:  # an interrupt too: the same command can be given again
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                files.remove_tree(path)
        raise


def _write_out(
    catalog: Catalog, model: Model, folder: Path, on_bytes: Callable[[int], None]
) -> None:
    data = catalog.manifest_bytes(model)
    for layer in model.layers:
        if layer.media_type != FTW_TYPE:
            target = files.make_dir(folder / "blobs") / layer.digest.replace(":", "-")
            on_bytes(files.copy_file(catalog.blobs.path(layer.digest), target))
    target = files.make_dir(folder / "ftw" / model.ftw_id)
    for name in _names(model.ftw_path, model.ftw_id):
        files.copy_file(model.ftw_path / name, target / name, on_bytes)
    files.write_atomic(folder / MANIFEST_NAME, data)
    head = {"format": FORMAT, "version": VERSION, "name": model.name.full}
    files.write_atomic(folder / HEAD_NAME, json.dumps(head).encode() + b"\n")


def read_exported(folder: Path, name: str = "") -> Exported:
    """What a folder holds. name: to install it under another one.

    Raises: NotFoundError, UsageError for a newer format, IntegrityError.
    """
    try:
        head = json.loads(files.read_bytes(folder / HEAD_NAME, limit=1 << 16))
        data = files.read_bytes(folder / MANIFEST_NAME, limit=MANIFEST_LIMIT_BYTES)
        kind, version, own = head["format"], head["version"], str(head["name"])
    except FileNotFoundError:
        raise NotFoundError(
            f"{folder} holds no exported model",
            hint="It needs ft-model.json, which ft export writes last.",
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{folder / HEAD_NAME} cannot be read: {error}") from None
    if kind != FORMAT or version != VERSION:
        raise UsageError(
            f"{folder} has format {kind} {version}; this ft reads {FORMAT} {VERSION}",
            hint="Export it with this version, or use a newer ft here.",
        )
    manifest = Manifest.from_json(data)
    weights = manifest.first(FTW_TYPE)
    if weights is None or not is_ftw_id(weights.hex):
        raise IntegrityError(f"the manifest in {folder} names no weights")
    return Exported(folder, parse_name(name or own), manifest, data, weights)


def import_model(jobs: JobManager, exported: Exported) -> AsyncIterator[Progress]:
    """Take an exported model in, every byte checked; ends with "success".   Raises: FtmanError."""

    async def make(tools: PullTools, emit: Emit, claim: Callable[[str], None]) -> Model:
        claim(exported.weights.hex)
        for digest in exported.manifest.digests:
            claim(digest.partition(":")[2])
        try:
            model = await in_thread(_take_in, tools, emit, exported)
        except OSError as error:
            what = f"importing {exported.name.short}"
            raise disk.explain(error, tools.paths.models, what) from error
        emit(Progress("success", phase="done"))
        return model

    name = exported.name
    return jobs.run_job("importing", "/".join(name.key), name.short, make)


def _take_in(tools: PullTools, emit: Emit, exported: Exported) -> Model:
    paths, ftw_id = tools.paths, exported.weights.hex
    folder = paths.partial / hashlib.sha256(f"import {ftw_id}".encode()).hexdigest()[:16]
    if verify_folder(paths.ftw / ftw_id, ftw_id):  # not here, or not whole
        what = f"importing {exported.name.short}"
        disk.require_space(paths.models, exported.weights.size, tools.reserve_bytes, what)
        files.make_dir(folder)
        try:
            with disk.JobLock(folder / "lock"):
                _copy_weights(tools, emit, exported, folder / "ftw")
                place_ftw(paths, folder / "ftw", ftw_id)
        finally:
            files.remove_tree(folder)  # all of it can be read again
    for layer in (*exported.manifest.layers, exported.manifest.config):
        if layer.media_type != FTW_TYPE:
            _copy_blob(tools.catalog, exported, layer)
    emit(Progress("writing manifest", phase="install"))
    return tools.catalog.adopt(exported.name, exported.data)


def _copy_weights(tools: PullTools, emit: Emit, exported: Exported, target: Path) -> None:
    ftw_id = exported.weights.hex
    files.remove_tree(target)
    files.make_dir(target)
    start = Progress("copying weights", exported.weights.digest, exported.weights.size)
    bar = Bar(emit, tools.clock, start)
    for name in _names(exported.ftw_path, ftw_id):
        files.copy_file(exported.ftw_path / name, target / name, bar.add)
    emit(Progress("verifying checksums", phase="verify"))
    # What was written, not what was read: a bad stick and a bad disk are both found.
    damage = verify_folder(target, ftw_id)
    if damage:
        raise IntegrityError(
            f"{exported.folder}: {damage[0].file} {damage[0].reason}",
            hint="Copy the folder again from where it was exported.",
        )


def _copy_blob(catalog: Catalog, exported: Exported, layer: Layer) -> None:
    path = exported.folder / "blobs" / layer.digest.replace(":", "-")
    data = files.read_bytes(path, limit=BLOB_LIMIT_BYTES)
    if hashlib.sha256(data).hexdigest() != layer.hex:
        raise IntegrityError(
            f"{path} does not match its digest",
            hint="Copy the folder again from where it was exported.",
        )
    catalog.blobs.write(data)


def _names(folder: Path, ftw_id: str) -> list[str]:
    """Every file of an FTW folder, its index first.   Raises: IntegrityError."""
    index = read_index(folder, ftw_id)
    if index.problem:
        raise IntegrityError(f"{folder}: {index.problem}")
    return [INDEX_NAME, *(item.name for item in index.files)]
