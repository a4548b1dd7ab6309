"""What interrupted pulls have left: whose it is, how large, and taking it away.

A pull's folder is locked by the process that works in it; a locked one is never touched.
"""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from ftman import files
from ftman.pull import disk

log = logging.getLogger(__name__)

HEAD_LIMIT_BYTES = 1 << 16


@dataclass(frozen=True)
class Partial:
    """One folder below `partial/`. name "" = not known. Units: bytes; wall seconds."""

    name: str
    folder: Path
    bytes: int
    modified_wall_s: float


def list_partials(folder: Path) -> list[Partial]:
    """Every partial download, largest first."""
    found = [_described(path) for path in _folders(folder)]
    return sorted(found, key=lambda item: -item.bytes)


def drop_partials(folder: Path, before_wall_s: float) -> int:
    """Remove those that nobody works on and nobody touched since then; returns the bytes freed."""
    freed = 0
    for item in list_partials(folder):
        if item.modified_wall_s >= before_wall_s:
            continue
        with contextlib.suppress(OSError), disk.JobLock(item.folder / "lock"):
            log.info("the partial download %s of %s is removed", item.folder.name, item.name or "?")
            files.remove_tree(item.folder)
            freed += item.bytes
    return freed


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _described(path: Path) -> Partial:
    size, newest = 0, path.stat().st_mtime
    for item in files.walk(path):
        with contextlib.suppress(OSError):  # a running pull renames and removes
            stat = item.stat()
            size, newest = size + stat.st_size, max(newest, stat.st_mtime)
    try:
        name = str(json.loads(files.read_bytes(path / "job.json", limit=HEAD_LIMIT_BYTES))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        name = ""
    return Partial(name, path, size, newest)
