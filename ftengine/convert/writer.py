"""Puts bytes at their final FTW places: dense rows, packed expert rows, staged halves, the index.

Lossless: rows are moved (un-permuted, packed in panels), never requantised. A gate whose up or
scales have not arrived yet waits in a staging file of its bank.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ftengine.convert.bank_plan import bank_part
from ftengine.convert.layout import Layout
from ftengine.convert.pack_part import packed_part
from ftengine.convert.pieces import Piece
from ftengine.convert.source import SCALES
from ftengine.loader.ftw import INDEX_NAME, VERSION, FtwBank, FtwTensor, block_digests
from ftengine.models.weight_names import COPIED
from ftengine.quant import nvfp4
from ftengine.quant.base import Bytes
from ftman import files

WORK_DIR = "work"


class FtwWriter:
    """The shards of one target folder; nothing is durable before `sync`."""

    def __init__(self, target: Path, layout: Layout):
        self.target = target
        self.layout = layout
        self._tensors = {item.name: item for item in layout.tensors}
        self._banks = {item.name: item for item in layout.banks}
        self._shards = [files.Writer(target / name) for name in self.shard_names()]
        for writer, size in zip(self._shards, layout.shards, strict=True):
            writer.truncate(size)
        self._stages: dict[str, files.Writer] = {}
        self._dirty: set[files.Writer] = set(self._shards)

    def shard_names(self) -> list[str]:
        """File names in order."""
        return [f"weights-{number:05d}.ftw" for number in range(len(self.layout.shards))]

    def missing_bytes(self) -> int:
        """Bytes of the shards that the disk has not given out yet."""
        total = 0
        for name, size in zip(self.shard_names(), self.layout.shards, strict=True):
            status = (self.target / name).stat()
            total += max(0, size - getattr(status, "st_blocks", 0) * 512)
        return total

    def write_dense(self, piece: Piece, data: bytearray) -> None:
        """Rows of a dense tensor, un-permuted where the piece says so; or what one role takes."""
        region = self._tensors[piece.name]
        rows = unpermute(data, piece)
        if piece.blocks:
            blocks = np.frombuffer(rows, np.uint8).reshape(-1, piece.row_bytes)
            codes, scales = nvfp4.split_ggml(blocks)
            rows = scales if piece.role == SCALES else codes
        self._write(region, region.offset + piece.at, rows)

    def write_generated(self, name: str, values: Bytes) -> None:
        """A whole dense tensor that no source file holds."""
        region = self._tensors[name]
        self._write(region, region.offset, values)

    def write_part(self, members: list[tuple[Piece, bytearray]]) -> None:
        """One part of one expert, or of all, from all its pieces."""
        piece = members[0][0]
        bank = self._banks[piece.name]
        part = bank.part(bank_part(piece.part))
        self._write_part(bank, piece.expert, part.offset, packed_part(part, members))

    def write_row(self, name: str, expert: int, at: int, values: Bytes) -> None:
        """One part of one expert, laid out already. Units: `at` bytes from the row's start."""
        bank = self._banks[name]
        self._write(bank, bank.offset + expert * bank.row_bytes + at, values)

    def stage(self, piece: Piece, data: bytearray) -> None:
        """Keep a piece until the others of its part arrive."""
        writer = self._stage(piece.name)
        writer.write_at(piece.stage, data)
        self._dirty.add(writer)

    def staged(self, piece: Piece) -> bytearray:
        """Read back what was staged, from this run or an earlier one."""
        path = self._stage(piece.name).path
        with files.open_read(path) as reader:
            reader.seek(piece.stage)
            return bytearray(reader.read(piece.end - piece.start))

    def drop_stage(self, name: str) -> None:
        """All pieces of a bank are in place."""
        writer = self._stages.pop(name, None)
        if writer is not None:
            self._dirty.discard(writer)
            writer.close()
        files.unlink(self._stage_path(name))

    def sync(self) -> None:
        """Make everything written so far durable."""
        for writer in self._dirty:
            writer.sync()
        self._dirty.clear()

    def close(self) -> None:
        """Close all files."""
        for writer in (*self._shards, *self._stages.values()):
            writer.close()

    def write_index(
        self,
        family: str,
        origins: dict[str, Any],
        small: list[str],
        on_bytes: Callable[[int], None],
    ) -> None:
        """Hash shards and small files and write index.json, the last file to appear."""
        shards = [
            {
                "blocks": list(block_digests(self.target / name, on_bytes)),
                "bytes": size,
                "file": name,
            }
            for name, size in zip(self.shard_names(), self.layout.shards, strict=True)
        ]
        listed = []
        for name in sorted(small):
            data = files.read_bytes(self.target / name, limit=1 << 30)
            digest = hashlib.sha256(data).hexdigest()
            listed.append({"bytes": len(data), "name": name, "sha256": digest})
        index = {
            "banks": [_bank_entry(bank, origins[bank.name]) for bank in self.layout.banks],
            "family": family,
            "files": listed,
            "format": "ftw",
            "shards": shards,
            "tensors": [_tensor_entry(item, origins[item.name]) for item in self.layout.tensors],
            "version": VERSION,
        }
        text = json.dumps(index, sort_keys=True, separators=(",", ":"))
        files.write_atomic(self.target / INDEX_NAME, text.encode())

    def _write(self, region: FtwTensor | FtwBank, offset: int, data: Any) -> None:
        writer = self._shards[region.shard]
        writer.write_at(offset, memoryview(data).cast("B"))
        self._dirty.add(writer)

    def _write_part(self, bank: FtwBank, expert: int, offset: int, packed: Bytes) -> None:
        experts = range(bank.num_experts) if expert == COPIED else (expert,)
        for row in experts:
            self._write(bank, bank.offset + row * bank.row_bytes + offset, packed)

    def _stage(self, name: str) -> files.Writer:
        if name not in self._stages:
            files.make_dir(self.target / WORK_DIR)
            self._stages[name] = files.Writer(self._stage_path(name))
        return self._stages[name]

    def _stage_path(self, name: str) -> Path:
        return self.target / WORK_DIR / f"stage-{name}"


def unpermute(data: bytearray, piece: Piece) -> Bytes | bytearray:
    """Rows of interleaved-rope heads to half-split order: pairs (2j, 2j+1) become (j, j + d/2)."""
    if not piece.heads:
        return data
    rows = np.frombuffer(data, np.uint8)
    split = rows.reshape(piece.heads, -1, 2, piece.row_bytes)
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(-1)


def _tensor_entry(item: FtwTensor, origin: Any) -> dict[str, Any]:
    entry = {
        "bytes": item.bytes,
        "format": item.format,
        "name": item.name,
        "offset": item.offset,
        "origin": origin,
        "shape": list(item.shape),
        "shard": item.shard,
    }
    for key, name in (("scales", item.scales), ("factor", item.factor)):
        if name:
            entry[key] = name
    return entry


def _bank_entry(bank: FtwBank, origin: Any) -> dict[str, Any]:
    parts = [
        {
            "bytes": part.bytes,
            "format": part.format,
            "layout": part.layout,
            "name": part.name,
            "offset": part.offset,
            "shape": list(part.shape),
        }
        for part in bank.parts
    ]
    return {
        "name": bank.name,
        "num_experts": bank.num_experts,
        "offset": bank.offset,
        "origin": origin,
        "parts": parts,
        "row_bytes": bank.row_bytes,
        "shard": bank.shard,
    }
