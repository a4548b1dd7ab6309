"""Is what is installed still what was installed? Sizes before each load, checksums on demand."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from ftman import files
from ftman.catalog.blobs import BlobStore
from ftman.catalog.manifest import FTW_TYPE
from ftman.catalog.model import Damage, Model

INDEX_NAME = "index.json"
BLOCK_BYTES = 16 << 20
_INDEX_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class IndexFile:
    """A file of an FTW folder as its index promises it. blocks: xxh3-128 per 16 MiB, hex."""

    name: str
    size: int
    blocks: tuple[str, ...] = ()
    sha256: str = ""


@dataclass(frozen=True)
class FolderIndex:
    """What an FTW folder must hold, or why its index cannot be used."""

    files: tuple[IndexFile, ...] = ()
    problem: str = ""


class SizeChecker:
    """Compares sizes with what manifest and index promise; remembers parsed indexes."""

    def __init__(self, blobs: BlobStore):
        self._blobs = blobs
        self._indexes: dict[Path, tuple[tuple[int, int, int], FolderIndex]] = {}

    def condemn(self, folder: Path, problem: str) -> None:
        """Call a folder damaged, whatever its sizes say, until another one takes its place."""
        known = self._indexes.get(folder)
        if known is not None:
            self._indexes[folder] = (known[0], FolderIndex(problem=problem))

    def check(self, model: Model) -> str:
        """ "" or the first thing that is damaged: which file, and how."""
        for layer in model.layers:
            if layer.media_type == FTW_TYPE:
                problem = self._check_folder(model.ftw_path, model.ftw_id, layer.size)
            else:
                size = self._blobs.size(layer.digest)
                problem = _size_problem(f"blob {layer.digest}", size, layer.size)
            if problem:
                return problem
        return ""

    def forget(self, folder: Path) -> None:
        """Drop what is remembered of a folder that was removed."""
        self._indexes.pop(folder, None)

    def _check_folder(self, folder: Path, ftw_id: str, total: int) -> str:
        index = self._index(folder, ftw_id)
        if index.problem:
            return index.problem
        for item in index.files:
            size = _size_of(f"{folder}{os.sep}{item.name}")  # a listing asks thousands of times
            problem = _size_problem(item.name, size, item.size)
            if problem:
                return problem
        found = sum(item.size for item in index.files) + (_size_of(folder / INDEX_NAME) or 0)
        if found != total:
            return f"the weights are {found} bytes by their index, {total} by the manifest"
        return ""

    def _index(self, folder: Path, ftw_id: str) -> FolderIndex:
        try:
            found = (folder / INDEX_NAME).stat()
        except OSError:
            return FolderIndex(problem=f"{INDEX_NAME} of the weights is missing")
        signature = (found.st_mtime_ns, found.st_size, found.st_ino)
        known = self._indexes.get(folder)
        if known is None or known[0] != signature:
            known = self._indexes[folder] = (signature, read_index(folder, ftw_id))
        return known[1]


def read_index(folder: Path, ftw_id: str) -> FolderIndex:
    """Read an FTW folder's index as far as checking needs it; never raises on bad content."""
    try:
        data = files.read_bytes(folder / INDEX_NAME, limit=_INDEX_LIMIT_BYTES)
    except OSError as error:
        return FolderIndex(problem=f"{INDEX_NAME} cannot be read: {error.strerror}")
    if hashlib.sha256(data).hexdigest() != ftw_id:
        return FolderIndex(problem=f"{INDEX_NAME} does not match its digest")
    try:
        value = json.loads(data)
        entries = (*_shards(value), *_others(value))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return FolderIndex(problem=f"{INDEX_NAME} is malformed")
    for item in entries:
        if not _is_plain(item.name) or item.size < 0:
            return FolderIndex(problem=f"{INDEX_NAME} names a file outside its folder")
    return FolderIndex(entries)


def verify_model(
    model: Model, blobs: BlobStore, on_bytes: Callable[[int], None] | None = None
) -> list[Damage]:
    """Read every byte of a model and list the damaged stretches. `on_bytes` gets each count."""
    told = on_bytes or _ignore
    found = list(_damaged_blobs(model, blobs, told))
    if not model.ftw_id:
        return [*found, Damage("manifest", "names no weights")]
    return [*found, *verify_folder(model.ftw_path, model.ftw_id, told)]


def verify_folder(
    folder: Path, ftw_id: str, on_bytes: Callable[[int], None] | None = None
) -> list[Damage]:
    """Read every byte of an FTW folder and list the damaged stretches."""
    told = on_bytes or _ignore
    index = read_index(folder, ftw_id)
    if index.problem:
        return [Damage(INDEX_NAME, index.problem)]
    found: list[Damage] = []
    for item in index.files:
        path = folder / item.name
        problem = _size_problem(item.name, _size_of(path), item.size)
        if problem and not path.is_file():
            found.append(Damage(item.name, problem, 0, item.size))
        elif item.sha256:
            found.extend(_damaged_file(path, item, told))
        else:
            found.extend(_damaged_blocks(path, item, told))
    return found


def _damaged_blobs(model: Model, blobs: BlobStore, told: Callable[[int], None]) -> Iterator[Damage]:
    for layer in model.layers:
        if layer.media_type == FTW_TYPE:
            continue
        size = blobs.size(layer.digest)
        if size is None:
            yield Damage(layer.digest, f"blob {layer.digest} is missing", 0, layer.size)
        elif files.sha256_file(blobs.path(layer.digest), told) != layer.hex:
            yield Damage(layer.digest, "does not match its digest", 0, max(size, layer.size))


def _damaged_file(path: Path, item: IndexFile, told: Callable[[int], None]) -> Iterator[Damage]:
    if files.sha256_file(path, told) != item.sha256:
        yield Damage(item.name, "does not match its sha256", 0, item.size)


def _damaged_blocks(path: Path, item: IndexFile, told: Callable[[int], None]) -> Iterator[Damage]:
    with files.open_read(path) as reader:
        for number, expected in enumerate(item.blocks):
            start = number * BLOCK_BYTES
            data = reader.read(min(BLOCK_BYTES, item.size - start))
            told(len(data))
            if xxhash.xxh3_128_hexdigest(data) != expected:
                end = min(start + BLOCK_BYTES, item.size)
                yield Damage(item.name, f"block {number} does not match its checksum", start, end)
        if reader.read(1):
            yield Damage(item.name, f"is longer than {item.size} bytes", item.size, item.size)


def _shards(value: Any) -> Iterator[IndexFile]:
    for shard in value["shards"]:
        size, blocks = int(shard["bytes"]), tuple(str(block) for block in shard["blocks"])
        if len(blocks) != -(-size // BLOCK_BYTES):
            raise ValueError("wrong number of block checksums")
        yield IndexFile(str(shard["file"]), size, blocks)


def _others(value: Any) -> Iterator[IndexFile]:
    for item in value.get("files", ()):
        yield IndexFile(str(item["name"]), int(item["bytes"]), sha256=str(item["sha256"]))


def _is_plain(name: str) -> bool:
    return bool(name) and not set(name) & set("/\\:\0") and name not in (".", "..")


def _size_of(path: Path | str) -> int | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path would take longer to make than to ask
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _size_problem(what: str, size: int | None, expected: int) -> str:
    if size is None:
        return f"{what} is missing"
    if size != expected:
        return f"{what} is {size} bytes, {expected} expected"
    return ""


def _ignore(_: int) -> None:
    pass
