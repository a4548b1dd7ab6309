"""One FTW folder from another: weights quantised, an adapter merged, everything else as it was.

The same base, adapter and target format give the same bytes on every machine. A cut-off run starts
again from nothing: its source is on this machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from ftengine.convert.bank_plan import ROWS_LAYOUT, bank_part, laid_out_bank
from ftengine.convert.convert import Progress, disk_full
from ftengine.convert.finished import result_of
from ftengine.convert.layout import Layout, assign
from ftengine.convert.lora import Key, check_shapes, read_adapter
from ftengine.convert.pieces import PIECE_BYTES, Piece
from ftengine.convert.protocol import Link
from ftengine.convert.quantize import (
    FILE_TYPES,
    FLOAT_FORMATS,
    TARGETS,
    target_format,
    writable,
)
from ftengine.convert.source import dump_json
from ftengine.convert.writer import FtwWriter
from ftengine.errors import LoadError, RequestError
from ftengine.loader.ftw import INDEX_NAME, FtwBank, FtwModel, FtwPart, FtwTensor
from ftengine.models.families import family_named
from ftengine.models.families.base import Family
from ftengine.models.weight_names import UP_ALONE, Matcher, WantedBank
from ftengine.quant import format_named, panel32
from ftengine.quant.base import Bytes
from ftman import files

SPARE_BYTES = 16 << 20
_JSON_LIMIT = 1 << 30


@dataclass(frozen=True)
class RemakeJob:
    """What to make of which FTW folder. quantize "" keeps formats; adapter: file name -> path."""

    source: Path
    target: Path
    quantize: str
    adapter: Mapping[str, Path]


def parse_remake(value: Any) -> RemakeJob:
    """Check a job line.   Raises: RequestError naming the field."""
    if not isinstance(value, dict):
        raise RequestError("remake must be an object")
    paths = [value.get("source"), value.get("target")]
    if not all(isinstance(path, str) and Path(path).is_absolute() for path in paths):
        raise RequestError("remake.source and remake.target must be absolute paths")
    quantize, adapter = value.get("quantize") or "", value.get("adapter") or {}
    if quantize and quantize not in TARGETS:
        raise RequestError(f"remake.quantize must be one of {', '.join(TARGETS)}")
    if not isinstance(adapter, dict) or not all(isinstance(p, str) for p in adapter.values()):
        raise RequestError("remake.adapter must map names to paths")
    if not quantize and not adapter:
        raise RequestError("remake has nothing to do: neither quantize nor adapter is given")
    places = {str(name): Path(path) for name, path in adapter.items()}
    return RemakeJob(Path(str(paths[0])), Path(str(paths[1])), quantize, places)


def run_remake(job: RemakeJob, link: Link) -> dict[str, Any]:
    """Make the new folder; returns the result line's content, as a conversion's.

    Raises: EngineError, StoppedError when told to stop, OSError as the disk gives it.
    """
    if job.target.is_dir() and any(job.target.iterdir()):
        raise RequestError(f"{job.target} is not empty; choose another folder")
    with FtwModel.open(job.source, check="checksums") as source:
        making = _Remaking(job, link, source)
        try:
            making.run()
        finally:
            making.close()
    result = result_of(job.target)
    if job.quantize:
        # By weight alone a small model's 8-bit embedding would give it its name.
        details = {**result["details"], "quantization_level": job.quantize.upper()}
        return {**result, "details": details}
    return result


class _Remaking:
    """The state of one run: what is read, what it becomes, where it goes."""

    def __init__(self, job: RemakeJob, link: Link, source: FtwModel):
        self.job = job
        self.link = link
        self.source = source
        self.index = source.index
        self.family = family_named(self.index.family)
        self.model = self.family.read_config(source.config)
        self.adapter = read_adapter(job.adapter, self.family, self.model) if job.adapter else None
        self._check_adapter()
        self.layout = self._new_layout()
        files.make_dir(job.target)
        free = files.free_bytes(job.target)
        if self.layout.total_bytes + SPARE_BYTES > free:
            raise disk_full(self.layout.total_bytes + SPARE_BYTES, free)
        self.writer = FtwWriter(job.target, self.layout)
        self.shards: list[IO[bytes]] = [
            files.open_read(job.source / shard.file) for shard in self.index.shards
        ]
        self.progress = Progress(link, sum(item.bytes for item in self._old()))

    def close(self) -> None:
        """Close all files."""
        self.writer.close()
        for reader in self.shards:
            reader.close()

    def run(self) -> None:
        """All regions, then the small files and the index."""
        old_tensors = {item.name: item for item in self.index.tensors}
        old_banks = {item.name: item for item in self.index.banks}
        for tensor in self.layout.tensors:
            self._remake_tensor(old_tensors[tensor.name], tensor)
        for bank in self.layout.banks:
            self._remake_bank(old_banks[bank.name], bank)
        self.writer.sync()
        small = self._small_files()
        for name, data in small.items():
            files.write_atomic(self.job.target / name, data)
        checking = Progress(self.link, self.layout.total_bytes, "checking")

        def on_bytes(count: int) -> None:
            self._poll()
            checking.add(count)

        origin = {"derived": self._recipe()}
        regions: list[FtwTensor | FtwBank] = [*self.layout.tensors, *self.layout.banks]
        origins: dict[str, Any] = {item.name: origin for item in regions}
        self.writer.write_index(self.index.family, origins, list(small), on_bytes)

    def _old(self) -> tuple[FtwTensor | FtwBank, ...]:
        return (*self.index.tensors, *self.index.banks)

    def _poll(self) -> None:
        self.link.receive(block=False)

    def _check_adapter(self) -> None:
        if self.adapter is None:
            return
        formats: dict[Key, str] = {}
        shapes: dict[Key, tuple[int, ...]] = {}
        for tensor in self.index.tensors:
            shapes[tensor.name, -1, ""] = tensor.shape
            formats[tensor.name, -1, ""] = tensor.format
        for bank in self.index.banks:
            for expert in range(bank.num_experts):
                for part, shape, fmt in _matrices(bank):
                    shapes[bank.name, expert, part] = shape
                    formats[bank.name, expert, part] = fmt
        check_shapes(self.adapter, shapes)
        for key in self.adapter.changes:
            if formats[key] not in FLOAT_FORMATS:
                raise LoadError(
                    f"adapters are merged into F16, BF16 and F32 weights; {key[0]} is "
                    f"{formats[key]}. Start from the model's bf16 release",
                    code="unsupported_format",
                )

    def _new_layout(self) -> Layout:
        beside = {name for t in self.index.tensors for name in (t.scales, t.factor)}
        regions: list[FtwTensor | FtwBank] = []
        for item in sorted(self._old(), key=_place):
            if isinstance(item, FtwBank):
                regions.append(self._new_bank(item))
            elif item.name in beside:
                regions.append(item)
            else:
                regions.append(self._new_tensor(item))
        placed, shards = assign(regions)
        tensors = tuple(item for item in placed if isinstance(item, FtwTensor))
        banks = tuple(item for item in placed if isinstance(item, FtwBank))
        tied = self.index.tensor("head") is None
        return Layout(self.model, tensors, banks, shards, (), (), tied)

    def _new_tensor(self, old: FtwTensor) -> FtwTensor:
        fmt = target_format(self.job.quantize, old.name, old.shape, old.format)
        if fmt == old.format:
            return old
        size = old.shape[0] * writable(fmt).row_bytes(old.shape[1])
        return replace(old, format=fmt, bytes=size)

    def _new_bank(self, old: FtwBank) -> FtwBank:
        first, down = old.first, old.part("down")
        has_bias = len(old.parts) > 2
        gated = first.name != UP_ALONE
        wanted = WantedBank(old.num_experts, first.shape[1], down.shape[1], has_bias, gated)
        formats = [
            writable(target_format(self.job.quantize, old.name, part.shape, part.format))
            for part in (first, down)
        ]
        return laid_out_bank(old.name, wanted, formats[0], formats[1])

    def _remake_tensor(self, old: FtwTensor, new: FtwTensor) -> None:
        change = self.adapter.changes.get((old.name, -1, "")) if self.adapter else None
        if old.format == new.format and change is None:
            for start, data in self._chunks(old, PIECE_BYTES):
                self.writer.write_dense(_piece(new, start, len(data), 1), bytearray(data))
            return
        source, target = format_named(old.format), writable(new.format)
        cols = old.shape[1]
        row_bytes, new_row_bytes = source.row_bytes(cols), target.row_bytes(cols)
        step = max(1, PIECE_BYTES // (4 * cols))
        for start, data in self._chunks(old, step * row_bytes):
            rows = np.frombuffer(data, np.uint8).reshape(-1, row_bytes)
            made = self._made(rows, old.format, new.format, change, start // row_bytes)
            at = start // row_bytes * new_row_bytes
            piece = _piece(new, at, made.nbytes, new_row_bytes)
            self.writer.write_dense(piece, bytearray(made.tobytes()))

    def _remake_bank(self, old: FtwBank, new: FtwBank) -> None:
        for expert in range(old.num_experts):
            self._poll()
            row = self._read(old, expert * old.row_bytes, old.row_bytes)
            for part in new.parts:
                made = self._made_part(old, part, row, expert)
                self.writer.write_row(new.name, expert, part.offset, made)
            self.progress.add(old.row_bytes)

    def _made_part(self, bank: FtwBank, new: FtwPart, row: Bytes, expert: int) -> Bytes:
        old = bank.part(new.name)
        packed = row[old.offset : old.offset + old.bytes]
        matrices = _unpacked(old, packed)
        made = []
        for name, rows in matrices.items():
            change = self.adapter.changes.get((bank.name, expert, name)) if self.adapter else None
            made.append(self._made(rows, old.format, new.format, change, 0))
        if new.layout == ROWS_LAYOUT:
            return np.concatenate([rows.reshape(-1) for rows in made])
        if new.name != "gate_up":
            return panel32.pack(new.format, made[0])
        return panel32.pack_pair(new.format, made[0], made[1])

    def _made(self, rows: Bytes, old: str, new: str, change: Any, first_row: int) -> Bytes:
        """Rows in the new format. Shape: uint8 [n, old row bytes] -> uint8 [n, new row bytes]."""
        if old == new and change is None:
            return rows
        values = format_named(old).dequantize(rows)
        if change is not None:
            values = change.add_to(values, first_row)
        return writable(new).quantize(values)

    def _chunks(self, region: FtwTensor, step: int) -> Iterator[tuple[int, Bytes]]:
        for start in range(0, region.bytes, step):
            self._poll()
            size = min(step, region.bytes - start)
            yield start, self._read(region, start, size)
            self.progress.add(size)

    def _read(self, region: FtwTensor | FtwBank, start: int, size: int) -> Bytes:
        reader = self.shards[region.shard]
        reader.seek(region.offset + start)
        data = np.frombuffer(reader.read(size), np.uint8)
        if data.size != size:
            raise LoadError(f"{self.job.source}: {region.name} ends early; pull the model again")
        return data

    def _recipe(self) -> dict[str, Any]:
        index = files.read_bytes(self.job.source / INDEX_NAME, limit=_JSON_LIMIT)
        return {
            "kind": "remake",
            "base": hashlib.sha256(index).hexdigest(),
            "quantize": self.job.quantize or None,
            "adapter": self.adapter.recipe() if self.adapter else None,
        }

    def _small_files(self) -> dict[str, bytes]:
        small = {
            item.name: files.read_bytes(self.job.source / item.name, limit=_JSON_LIMIT)
            for item in self.index.files
        }
        source = json.loads(small["source.json"])
        small["config.json"] = dump_json(self.source.config)
        small["source.json"] = self._source_json(source)
        return small

    def _source_json(self, source: dict[str, Any]) -> bytes:
        quantize = self.job.quantize
        if quantize and "general.file_type" in source["model_info"]:
            source["model_info"]["general.file_type"] = FILE_TYPES[quantize]
        source["tensors"] = list(self._listed(source))
        notes = [f"quantised here to {quantize.upper()}"] if quantize else []
        if self.adapter is not None:
            notes.append(f"a LoRA adapter over {len(self.adapter.changes)} matrices is merged in")
        source["notes"] = [*source["notes"], *notes]
        source["derive"] = self._recipe()
        return json.dumps(source, sort_keys=True, separators=(",", ":")).encode()

    def _listed(self, source: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The source's tensor table with the formats and sizes that the weights have now."""
        formats = {item.name: item.format for item in self.layout.tensors}
        for bank in self.layout.banks:
            for part in bank.parts:
                formats[f"{bank.name}/{part.name}"] = part.format
        matcher = Matcher(_rules(self.family, source["kind"]))
        for item in source["tensors"]:
            place = matcher.match(item["name"])
            name = place.name if place else ""
            if place and place.part:
                name += "/" + bank_part(place.part)
            fmt = formats.get(name, item["type"])
            if fmt == item["type"]:
                yield item
                continue
            rows = int(np.prod(item["shape"][:-1], dtype=np.int64))
            size = rows * writable(fmt).row_bytes(item["shape"][-1])
            yield {**item, "type": fmt, "bytes": size}


def _place(region: FtwTensor | FtwBank) -> tuple[int, int]:
    return region.shard, region.offset


def _rules(family: Family, kind: str) -> Any:
    return family.gguf_weights if kind == "gguf" else family.weights


def _piece(new: FtwTensor, at: int, size: int, row_bytes: int) -> Piece:
    return Piece(0, 0, size, new.name, new.format, row_bytes, at=at)


def _matrices(bank: FtwBank) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and format of every matrix of an expert; gate and up taken apart."""
    first, down = bank.first, bank.part("down")
    found = [("down", down.shape, down.format)]
    if first.name == UP_ALONE:
        return [(first.name, first.shape, first.format), *found]
    half = (first.shape[0] // 2, first.shape[1])
    return [("gate", half, first.format), ("up", half, first.format), *found]


def _unpacked(part: FtwPart, packed: Bytes) -> dict[str, Bytes]:
    """The plain rows of a part's matrices."""
    rows, cols = part.shape
    if part.layout == ROWS_LAYOUT:
        plain = packed.reshape(rows, -1)
        if part.name != "gate_up":
            return {part.name: plain}
        return {"gate": plain[: rows // 2], "up": plain[rows // 2 :]}
    if part.name != "gate_up":
        return {part.name: panel32.unpack(part.format, packed, rows, cols)}
    gate, up = panel32.unpack_pair(part.format, packed, rows // 2, cols)
    return {"gate": gate, "up": up}
