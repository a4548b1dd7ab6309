"""QuantFormat: how one weight format lays out a block, and how a row of blocks becomes float32.

Numpy only. What lives elsewhere: one file per format beside this one, the registry in the package's
__init__, and the kernel layout in panel32.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_CHUNK_BLOCKS_BYTES = 1 << 21
"""Blocks are decoded this many bytes at a time, so that temporaries stay in cache."""

OWN_IDS = 1000
"""Native ids of formats that GGML does not have start here."""


@dataclass(frozen=True)
class RowHeader:
    """Float32 factors in front of a row: one for every `span` elements, or one (span 0).

    divides: elements are divided by their factor instead of multiplied.
    """

    span: int = 0
    divides: bool = False

    def count(self, cols: int) -> int:
        """Factors of a row of `cols` elements."""
        return -(-cols // self.span) if self.span else 1


@dataclass(frozen=True)
class QuantFormat:
    """A block format. Units: block_bytes bytes hold block_elements consecutive elements of a row.

    native_id is the number that the native kernels use: the GGML type id where GGML has the format,
    else ours, from OWN_IDS on. A row is its header, if the format has one, then its blocks.
    """

    name: str
    block_elements: int
    block_bytes: int
    native_id: int
    decode_blocks: Callable[[Bytes], Floats]
    """uint8 [n, block_bytes] -> float32 [n, block_elements]."""
    encode_blocks: Callable[[Floats], Bytes] | None = None
    """float32 [n, block_elements] -> uint8 [n, block_bytes]; None where we only read the format."""
    header: RowHeader | None = None

    @property
    def gguf_type(self) -> int | None:
        """The GGML type id of GGUF files, None where GGML has no such format."""
        return self.native_id if self.native_id < OWN_IDS else None

    def header_bytes(self, cols: int) -> int:
        """Bytes of the float32 factors in front of a row of `cols` elements."""
        return 0 if self.header is None else 4 * self.header.count(cols)

    def row_bytes(self, cols: int) -> int:
        """Bytes of a row of `cols` elements. Raises: ValueError where blocks do not fit."""
        if cols <= 0 or cols % self.block_elements:
            raise ValueError(
                f"{self.name} rows need a positive multiple of {self.block_elements} elements, "
                f"got {cols}; keep this tensor in another format"
            )
        return self.header_bytes(cols) + cols // self.block_elements * self.block_bytes

    def row_cols(self, row_bytes: int) -> int:
        """Elements of a row of `row_bytes` bytes. Raises: ValueError if there is no such row."""
        body = row_bytes
        if self.header is not None:
            span = self.header.span
            whole = 4 + span // self.block_elements * self.block_bytes
            body -= 4 * (-(-row_bytes // whole) if span else 1)
        if body < 0 or body % self.block_bytes:
            before = "" if self.header is None else "float32 factors and "
            raise ValueError(
                f"{self.name} rows are uint8, {before}a multiple of {self.block_bytes} bytes long, "
                f"got {row_bytes} bytes"
            )
        return body // self.block_bytes * self.block_elements

    def dequantize(self, raw: Bytes) -> Floats:
        """Decode whole rows. Shape: uint8 [..., row_bytes] -> float32 [..., cols].

        Raises: ValueError if a row is not a whole number of blocks.
        """
        if raw.dtype != np.uint8 or raw.ndim == 0:
            raise ValueError(f"{self.name} rows are uint8, got {raw.dtype} {raw.shape}")
        cols = self.row_cols(raw.shape[-1])
        first = self.header_bytes(cols)
        rows = np.ascontiguousarray(raw).reshape(-1, raw.shape[-1])
        blocks = np.ascontiguousarray(rows[:, first:]).reshape(-1, self.block_bytes)
        out = np.empty((blocks.shape[0], self.block_elements), dtype=np.float32)
        step = max(1, _CHUNK_BLOCKS_BYTES // self.block_bytes)
        with np.errstate(invalid="ignore", over="ignore"):  # hostile scales may be inf or nan
            for start in range(0, blocks.shape[0], step):
                out[start : start + step] = self.decode_blocks(blocks[start : start + step])
            if self.header is not None:
                _apply_factors(self.header, rows[:, :first], out.reshape(-1, cols))
        return out.reshape(*raw.shape[:-1], cols)

    def quantize(self, values: Floats) -> Bytes:
        """Encode rows. Shape: float32 [..., cols] -> uint8 [..., row_bytes].

        Raises: ValueError if the format is read-only here or cols is no whole number of blocks.
        """
        if self.encode_blocks is None:
            raise ValueError(f"{self.name} can be read, not written; choose q8_0, q4_0 or q4_1")
        row_bytes = self.row_bytes(values.shape[-1])
        blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, self.block_elements)
        out = np.empty((blocks.shape[0], self.block_bytes), dtype=np.uint8)
        step = max(1, _CHUNK_BLOCKS_BYTES // self.block_bytes)
        for start in range(0, blocks.shape[0], step):
            out[start : start + step] = self.encode_blocks(blocks[start : start + step])
        return out.reshape(*values.shape[:-1], row_bytes)


def _apply_factors(header: RowHeader, raw: Bytes, values: Floats) -> None:
    """Shape: raw uint8 [rows, 4 * count], values [rows, cols], changed."""
    factors = np.ascontiguousarray(raw).view("<f4")
    span = header.span or values.shape[1]
    for index in range(factors.shape[1]):
        part = values[:, index * span : (index + 1) * span]
        if header.divides:
            with np.errstate(divide="ignore"):
                part /= factors[:, index : index + 1]
        else:
            part *= factors[:, index : index + 1]


def float_bytes(values: Floats | float, count: int, what: str) -> Bytes:
    """One float32, or one for each of `count` rows, as bytes. Shape: -> uint8 [count, 4].

    Raises: ValueError if there are neither one nor `count` of them.
    """
    flat = np.asarray(values, dtype="<f4").reshape(-1)
    if flat.size not in (1, count):
        raise ValueError(f"{what}: need 1 or {count} values, got {flat.size}")
    return np.ascontiguousarray(np.broadcast_to(flat, (count,))).view(np.uint8).reshape(count, 4)


def half_field(blocks: Bytes, offset: int) -> Floats:
    """The float16 at byte `offset` of every block, widened. Shape: [n, bytes] -> [n, 1]."""
    field = np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16)
    widened: Floats = field.astype(np.float32)
    return widened


def half_bytes(values: Floats) -> Bytes:
    """Float32 [n, 1] rounded to float16, as bytes [n, 2]."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint8)


def nibbles(packed: Bytes) -> Bytes:
    """Low nibbles of all bytes, then high nibbles. Shape: uint8 [n, b] -> uint8 [n, 2 * b]."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def join_nibbles(values: Bytes) -> Bytes:
    """Inverse of nibbles. Shape: uint8 [n, 2 * b] below 16 -> uint8 [n, b]."""
    half = values.shape[-1] // 2
    joined: Bytes = values[:, :half] | (values[:, half:] << np.uint8(4))
    return joined


def inverse_or_zero(scale: Floats) -> Floats:
    """1 / scale, and 0 where scale is 0."""
    with np.errstate(divide="ignore", over="ignore"):
        result: Any = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    return np.asarray(result, dtype=np.float32)


def signed_extreme(values: Floats) -> Floats:
    """The element of largest magnitude of each block, with its sign (first wins). Shape: [n, 1]."""
    where = np.abs(values).argmax(axis=-1, keepdims=True)
    extreme: Floats = np.take_along_axis(values, where, axis=-1)
    return extreme
