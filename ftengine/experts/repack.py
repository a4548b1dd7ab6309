"""Rows of any weight format -> the panel form the kernels read.

Formats without a panel form are dequantised once, to bfloat16 or float32 ("reference path").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ftengine.quant import format_named, panel32
from ftengine.quant.base import Bytes

_CHUNK_ROWS = 1024


@dataclass(frozen=True)
class Rows:
    """Raw rows of one format. Shape: data uint8 [rows, row_bytes]."""

    data: Bytes
    fmt: str
    cols: int


def panel_format_of(fmt: str, cols: int, wide: str) -> str:
    """The format in which a matrix of format `fmt` reaches the kernels; `wide` = bf16 or f32."""
    return fmt if panel32.fits(fmt, cols) else wide


def widen(rows: Rows, wide: str) -> Rows:
    """Rows in a format with a panel form: themselves, or dequantised to `wide`."""
    return rows if panel32.fits(rows.fmt, rows.cols) else dequantized(rows, wide)


def dequantized(rows: Rows, wide: str) -> Rows:
    """Rows as bf16 (rounded to nearest even) or f32, a block of rows at a time."""
    if rows.fmt == wide:
        return rows
    count = rows.data.shape[0]
    source, target = format_named(rows.fmt), format_named(wide)
    out = np.empty((count, target.row_bytes(rows.cols)), dtype=np.uint8)
    for first in range(0, count, _CHUNK_ROWS):
        values = source.dequantize(rows.data[first : first + _CHUNK_ROWS])
        out[first : first + _CHUNK_ROWS] = target.quantize(values)
    return Rows(out, wide, rows.cols)


def shares_rows(fmt: str) -> bool:
    """Whether 16 rows of a panel have factors in common, so that rows cannot move alone."""
    return panel32.supports(fmt) and panel32.panel_format(fmt).shares_factors


def picked(rows: Rows, groups: int, start: int, stop: int) -> Rows:
    """Rows [start, stop) of each of `groups` equal groups."""
    apart = rows.data.reshape(groups, -1, rows.data.shape[1])
    return Rows(apart[:, start:stop].reshape(-1, rows.data.shape[1]), rows.fmt, rows.cols)


def same_format(items: list[Rows], wide: str) -> list[Rows]:
    """Rows that must share one format: as they are if they do, else all as `wide`."""
    if len({item.fmt for item in items}) == 1:
        return [widen(item, wide) for item in items]
    return [dequantized(item, wide) for item in items]
