"""Checkpoint folders of any size from a table of shapes, filled with random values.

Values are scaled so that products keep their size. Nothing but a piece of one tensor is in memory
at a time.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_ITEM_BITS = {"BF16": 16, "F32": 32, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I64": 64}
_PIECE = 1 << 24
_FP4_DEVIATION = 2.9
"""Of the sixteen values that four bits stand for, drawn alike."""


@dataclass(frozen=True)
class Row:
    """One tensor of a shape table. mean: of the values, where they are not products' weights."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    mean: float = 0.0

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * _ITEM_BITS[self.dtype] // 8


def nvfp4_rows(name: str, rows: int, cols: int) -> Iterator[Row]:
    """The tensors of one matrix in NVFP4, as modelopt names them."""
    yield Row(f"{name}.weight", "U8", (rows, cols // 2))
    yield Row(f"{name}.weight_scale", "F8_E4M3", (rows, cols // 16))
    yield Row(f"{name}.weight_scale_2", "F32", (), 1 / (0.7 * _FP4_DEVIATION * math.sqrt(cols)))
    yield Row(f"{name}.input_scale", "F32", (), 1)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], rows: Iterable[Row], seed: int = 0
) -> None:
    """Write config.json, an index and a shard for each layer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)), "utf-8")
    shards: dict[str, list[Row]] = {}
    for row in rows:
        words = row.name.split(".")
        part = words[words.index("layers") + 1] if "layers" in words else "outside"
        shards.setdefault(part, []).append(row)
    rng = np.random.default_rng(seed)
    where = {}
    for number, shard in enumerate(shards.values(), 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with (folder / name).open("wb") as file:
            _write_shard(file, shard, rng)
        where |= {row.name: name for row in shard}
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def shard_header(rows: list[Row]) -> bytes:
    """What a safetensors file of these tensors, one behind the other, begins with."""
    header, at = {}, 0
    for row in rows:
        ends = [at, at + row.bytes]
        header[row.name] = {"dtype": row.dtype, "shape": row.shape, "data_offsets": ends}
        at += row.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text


def _write_shard(file: BinaryIO, rows: list[Row], rng: np.random.Generator) -> None:
    file.write(shard_header(rows))
    for row in rows:
        for piece in _values(row, rng):
            file.write(piece.tobytes())


def _values(row: Row, rng: np.random.Generator) -> Iterator[npt.NDArray[Any]]:
    """Bytes of a tensor, a piece at a time."""
    count = math.prod(row.shape)
    for start in range(0, count, _PIECE):
        size = min(_PIECE, count - start)
        if row.dtype == "F32":
            yield _floats(row, rng.standard_normal(size, np.float32))
        elif row.dtype == "BF16":
            made = _floats(row, rng.standard_normal(size, np.float32))
            yield (made.view(np.uint32) >> 16).astype(np.uint16)
        elif row.dtype == "F8_E4M3":  # 0.5 to 0.9375
            yield rng.integers(0x30, 0x38, size, np.uint8)
        else:
            yield rng.integers(0, 256, size, np.uint8)


def _floats(row: Row, noise: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    mean = np.float32(row.mean)
    if not row.shape:
        return mean + 0 * noise
    if len(row.shape) == 1:
        return mean + np.float32(0.05) * noise
    return noise * np.float32(1.0 if "embed" in row.name else row.shape[-1] ** -0.5)
