"""Bytes that a plan fetched: kept beside the download, so that it need not fetch them again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ftman import files

_RANGE = re.compile(r"\.head-(\d{1,15})-(\d{1,15})$")


@dataclass(frozen=True)
class Head:
    """Bytes [start, end) of a source file, whole in `path`."""

    start: int
    end: int
    path: Path


def safe_name(name: str) -> str:
    """A file name that cannot leave its folder, whatever a source calls the file."""
    flat = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    return f"f_{flat}"[-200:]


def head_path(folder: Path, name: str, start: int, end: int) -> Path:
    """Where bytes [start, end) of the source file `name` are kept."""
    return folder / f"{safe_name(name)}.head-{start}-{end}"


def find_heads(folder: Path, name: str) -> list[Head]:
    """What is kept of a file, in order."""
    stem, found = safe_name(name), []
    for path in folder.glob(f"{stem}.head-*"):
        match = _RANGE.fullmatch(path.name[len(stem) :])
        if match:
            head = Head(int(match[1]), int(match[2]), path)
            if path.stat().st_size == head.end - head.start:
                found.append(head)
    return sorted(found, key=lambda head: (head.start, -head.end))


def pieces_from(folder: Path, name: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) that follow one another from `start` on, as far as they are kept."""
    at = start
    for head in find_heads(folder, name):
        if head.start > at:
            return
        stop = min(head.end, end)
        if stop <= at:
            continue
        with files.open_read(head.path) as reader:
            reader.seek(at - head.start)
            while at < stop and (data := reader.read(min(files.CHUNK_BYTES, stop - at))):
                yield at, data
                at += len(data)


def drop_heads(folder: Path, name: str) -> None:
    """Forget what is kept of a file: it, or the source, was wrong."""
    for head in find_heads(folder, name):
        files.unlink(head.path)


def adopt_heads(source: Path, target: Path) -> None:
    """Move all that a plan kept in `source` to a job's folder."""
    for path in sorted(source.glob("*.head-*")):
        if _RANGE.search(path.name) and not (target / path.name).exists():
            files.rename(path, target / path.name)
