"""Codes, scales and factor of a quantised matrix -> the rows of its QuantFormat. Moves bytes only.

The regions are those of stored.py; the rows those of ftengine/quant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftengine.loader.stored import (
    FACTORED,
    FP8_TENSOR,
    INT4,
    MXFP4,
    SCALE_BYTES,
    SCALE_FORMATS,
    code_bytes,
    scale_shapes,
)
from ftengine.quant import format_named, fp8, mxfp4, nvfp4, q4_0
from ftengine.quant.base import Bytes, Floats


@dataclass(frozen=True)
class Scales:
    """Scales as stored. Shape: data uint8, flat, of items of format `fmt`."""

    data: Bytes
    fmt: str


def joined_rows(
    fmt: str, shape: tuple[int, int], codes: Bytes, scales: Scales, factor: Bytes | None = None
) -> Bytes:
    """Rows with their scales in them. Shape: codes uint8, flat; -> uint8 [rows, row_bytes].

    factor: the four bytes of the tensor's own float32, for the formats that have one.
    Raises: ValueError where sizes or formats do not belong together, and for values that the rows
    cannot hold exactly.
    """
    rows, cols = shape
    _check(fmt, shape, codes, scales, factor)
    quants = codes.reshape(rows, code_bytes(fmt, cols))
    if fmt == MXFP4:
        return mxfp4.join_rows(quants, scales.data.reshape(rows, -1))
    if fmt in FACTORED:
        assert factor is not None
        return nvfp4.join_rows(quants, scales.data.reshape(rows, -1), factor.view("<f4"))
    if fmt == INT4:
        return q4_0.join_rows(quants, _floats(scales).reshape(rows, -1))
    if fmt == FP8_TENSOR:
        return fp8.join_tensor_rows(quants, _floats(scales))
    grid = scale_shapes(fmt, rows, cols)[0]
    values = scales.data if scales.fmt == "e8m0" else _floats(scales)
    return fp8.join_block_rows(quants, values.reshape(grid))


def _check(
    fmt: str, shape: tuple[int, int], codes: Bytes, scales: Scales, factor: Bytes | None
) -> None:
    rows, cols = shape
    if scales.fmt not in SCALE_FORMATS[fmt]:
        raise ValueError(f"{fmt} has scales of {SCALE_FORMATS[fmt]}, got {scales.fmt}")
    if codes.size != rows * code_bytes(fmt, cols):
        raise ValueError(f"{fmt} {list(shape)} does not have {codes.size} bytes of codes")
    counts = {int(np.prod(item)) for item in scale_shapes(fmt, rows, cols)}
    if scales.data.size not in {count * SCALE_BYTES[scales.fmt] for count in counts}:
        raise ValueError(f"{fmt} {list(shape)} does not have {scales.data.size} bytes of scales")
    if (factor is None) == (fmt in FACTORED) or (factor is not None and factor.size != 4):
        raise ValueError(f"{fmt}: a factor of one float32 is missing or too much")


def _floats(scales: Scales) -> Floats:
    return format_named(scales.fmt).dequantize(scales.data.reshape(-1))
