"""Damaged blocks of a finished FTW folder, made anew from just the source bytes they came from.

A block is put together in memory and written only when its checksum is right again: an engine that
reads the folder meanwhile never sees a third version of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from ftengine.convert.convert import Progress, read_plan
from ftengine.convert.derive import generated_bytes
from ftengine.convert.finished import source_json
from ftengine.convert.layout import Layout
from ftengine.convert.pieces import Piece, groups_of
from ftengine.convert.protocol import Job, Link
from ftengine.convert.source import Checkpoint, dump_json
from ftengine.convert.window import KeptRanges, Windows
from ftengine.convert.writer import FtwWriter
from ftengine.errors import LoadError, RequestError
from ftengine.loader.ftw import (
    BLOCK_BYTES,
    INDEX_NAME,
    FtwBank,
    FtwIndex,
    FtwTensor,
    parse_index,
)
from ftengine.models.weight_names import COPIED
from ftman import files


@dataclass(frozen=True)
class Stretch:
    """Bytes [start, end) of one file of the folder."""

    file: str
    start: int
    end: int


def parse_damage(value: Any) -> tuple[Stretch, ...]:
    """The job's `damage`.   Raises: RequestError."""
    found = []
    for item in value if isinstance(value, list) else [None]:
        given = item if isinstance(item, dict) else {}
        name, ends = given.get("file"), (given.get("start"), given.get("end"))
        numbers = [end for end in ends if type(end) is int and end >= 0]
        if not isinstance(name, str) or len(numbers) < len(ends):
            raise RequestError("job.damage must hold {file, start, end} objects")
        found.append(Stretch(name, *numbers))
    return tuple(found)


def repair_job(job: Job, damage: Sequence[Stretch], link: Link) -> dict[str, Any]:
    """Mend what can be mended; returns what could not, and how many bytes were written.

    Raises: LoadError if the source does not lead to this folder at all.
    """
    where = job.target / INDEX_NAME
    index = parse_index(files.read_bytes(where), str(where))
    windows = Windows(link, job.files)
    try:
        source, layout = read_plan(job, KeptRanges(windows, None))
        _check_same(layout, index)
        return _Repair(job, source, layout, index, windows).run(damage, link)
    finally:
        windows.close()


class _Repair:
    """One run over one folder."""

    def __init__(
        self, job: Job, source: Checkpoint, layout: Layout, index: FtwIndex, windows: Windows
    ):
        self._job = job
        self._source = source
        self._layout = layout
        self._index = index
        self._windows = windows
        self._groups = groups_of(layout.pieces)
        self._by_name: dict[str, list[int]] = {}
        for number, piece in enumerate(layout.pieces):
            self._by_name.setdefault(piece.name, []).append(number)

    def run(self, damage: Sequence[Stretch], link: Link) -> dict[str, Any]:
        blocks = sorted({block for stretch in damage for block in self._blocks(stretch)})
        small = sorted({item.file for item in damage} & {item.name for item in self._index.files})
        progress = Progress(link, max(1, len(blocks)) * BLOCK_BYTES, "repairing")
        left: list[dict[str, Any]] = []
        written = 0
        for shard, block in blocks:
            size = self._mend_block(shard, block)
            written += size
            if not size:
                start = block * BLOCK_BYTES
                name = self._index.shards[shard].file
                left.append({"file": name, "start": start, "end": start + BLOCK_BYTES})
            progress.add(BLOCK_BYTES)
        for name in small:
            size = self._mend_file(name)
            written += size
            if not size:
                left.append({"file": name, "start": 0, "end": 0})
        for entry in self._index.shards:
            self._cut(entry.file, entry.bytes)
        return {"left": left, "bytes": written, "blocks": len(blocks), "files": len(small)}

    def _blocks(self, stretch: Stretch) -> Iterator[tuple[int, int]]:
        for number, shard in enumerate(self._index.shards):
            if shard.file == stretch.file:
                last = min(stretch.end, shard.bytes)
                for block in range(stretch.start // BLOCK_BYTES, -(-last // BLOCK_BYTES)):
                    yield number, block

    def _mend_block(self, shard: int, block: int) -> int:
        """Bytes written; 0 if the source does not give the bytes that were there."""
        entry = self._index.shards[shard]
        start = block * BLOCK_BYTES
        patch = _Patch(self._layout, shard, start, min(start + BLOCK_BYTES, entry.bytes))
        regions: tuple[FtwTensor | FtwBank, ...] = (*self._layout.tensors, *self._layout.banks)
        for region in regions:
            if region.shard == shard and patch.meets(region.offset, region.bytes):
                self._fill(patch, region)
        if xxhash.xxh3_128_hexdigest(patch.data) != entry.blocks[block]:
            return 0
        with files.Writer(self._job.target / entry.file) as writer:
            writer.write_at(start, patch.data)
            writer.sync()
        return len(patch.data)

    def _fill(self, patch: _Patch, region: FtwTensor | FtwBank) -> None:
        if isinstance(region, FtwBank):
            self._fill_rows(patch, region)
            return
        if region.name in self._layout.generated:
            hidden = self._layout.model.hidden_size
            values = generated_bytes(region.name, self._job.derive, hidden)
            patch.write_generated(region.name, values)
            return
        for number in self._by_name.get(region.name, ()):
            piece = self._layout.pieces[number]
            if patch.meets(region.offset + piece.at, piece.end - piece.start):
                patch.write_dense(piece, self._fetch(piece))

    def _fill_rows(self, patch: _Patch, bank: FtwBank) -> None:
        first, last = patch.rows_of(bank)
        done: set[tuple[int, ...]] = set()
        for number in self._by_name.get(bank.name, ()):
            expert, group = self._layout.pieces[number].expert, self._groups[number]
            if group in done or (expert != COPIED and not first <= expert < last):
                continue
            done.add(group)
            members = [self._layout.pieces[other] for other in group]
            patch.write_part([(piece, self._fetch(piece)) for piece in members])

    def _fetch(self, piece: Piece) -> bytearray:
        return self._windows.fetch(piece.file, piece.start, piece.end)

    def _mend_file(self, name: str) -> int:
        small = {**self._source.small, "config.json": dump_json(self._source.config)}
        small["source.json"] = source_json(self._source, self._job)
        wanted = next(item for item in self._index.files if item.name == name)
        data = small.get(name, b"")
        if hashlib.sha256(data).hexdigest() != wanted.sha256:
            return 0
        files.write_atomic(self._job.target / name, data)
        return len(data)

    def _cut(self, name: str, size: int) -> None:
        path = self._job.target / name
        if path.is_file() and path.stat().st_size > size:
            with files.Writer(path) as writer:
                writer.truncate(size)
                writer.sync()


class _Patch(FtwWriter):
    """One block in memory: takes of everything written what falls into it."""

    def __init__(self, layout: Layout, shard: int, start: int, end: int):
        # Not the base's: nothing here is a file.
        self.layout = layout
        self.data = bytearray(end - start)
        self._tensors = {item.name: item for item in layout.tensors}
        self._banks = {item.name: item for item in layout.banks}
        self._shard = shard
        self._start = start
        self._end = end

    def meets(self, offset: int, size: int) -> bool:
        """True if a stretch of this shard reaches into the block."""
        return offset < self._end and self._start < offset + size

    def rows_of(self, bank: FtwBank) -> tuple[int, int]:
        """The rows [first, last) of a bank that reach into the block."""
        first = max(0, (self._start - bank.offset) // bank.row_bytes)
        return first, -(-(self._end - bank.offset) // bank.row_bytes)

    def _write(self, region: FtwTensor | FtwBank, offset: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        if region.shard != self._shard or not self.meets(offset, len(view)):
            return
        start, end = max(offset, self._start), min(offset + len(view), self._end)
        self.data[start - self._start : end - self._start] = view[start - offset : end - offset]


def _check_same(layout: Layout, index: FtwIndex) -> None:
    """The same regions at the same places, or nothing of this source belongs there."""
    same = layout.tensors == index.tensors and layout.banks == index.banks
    if not same or layout.shards != tuple(shard.bytes for shard in index.shards):
        raise LoadError(
            "the source does not convert to the same layout as these weights",
            code="other_layout",
        )
