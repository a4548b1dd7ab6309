"""fp8: E4M3 values with float32 scales; w = e4m3 * scale. Read only.

fp8_tensor      row: 4 bytes float32 scale, then one byte an element. A scale per tensor is repeated
                in every row, a scale per channel is each row's own.
fp8_block       row: one float32 for every 128 elements (ceil(cols / 128) of them), then one byte an
                element. Rows of a 128 x 128 block repeat its scale.
fp8_block_e8m0  the same; the release's scales are E8M0 bytes, which float32 holds exactly.
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat, RowHeader, float_bytes
from ftengine.quant.small_floats import E4M3, E8M0, e8m0_codes

BLOCK = 128
"""Rows and columns that share a scale in fp8_block."""


def _decode(blocks: Bytes) -> Floats:
    return E4M3[blocks]


TENSOR_FORMAT = QuantFormat("fp8_tensor", 1, 1, 1003, _decode, header=RowHeader())
BLOCK_FORMAT = QuantFormat("fp8_block", 1, 1, 1004, _decode, header=RowHeader(span=BLOCK))
BLOCK_E8M0_FORMAT = QuantFormat("fp8_block_e8m0", 1, 1, 1004, _decode, header=RowHeader(span=BLOCK))


def join_tensor_rows(quants: Bytes, scale: Floats | float) -> Bytes:
    """fp8_tensor rows. Shape: quants uint8 [rows, cols], scale one float32 or one a row.

    Raises: ValueError if the number of scales is neither.
    """
    scales = float_bytes(scale, quants.shape[0], "fp8_tensor scale")
    return np.concatenate([scales, quants], axis=1)


def split_tensor_rows(rows: Bytes) -> tuple[Bytes, Floats]:
    """Inverse of join_tensor_rows: quants and the scale of every row (float32 [rows])."""
    scales = np.ascontiguousarray(rows[:, :4]).view("<f4").reshape(-1)
    return np.ascontiguousarray(rows[:, 4:]), scales


def join_block_rows(quants: Bytes, scales: Floats | Bytes) -> Bytes:
    """fp8_block rows, or fp8_block_e8m0 rows where scales are uint8.

    Shape: quants uint8 [rows, cols], scales [ceil(rows / 128), ceil(cols / 128)].
    Raises: ValueError if the grid does not fit.
    """
    count, cols = quants.shape
    grid = (-(-count // BLOCK), -(-cols // BLOCK))
    if scales.shape != grid:
        raise ValueError(
            f"fp8_block [{count}, {cols}] needs scales {list(grid)}, got {list(scales.shape)}"
        )
    wide = E8M0[scales] if scales.dtype == np.uint8 else scales.astype("<f4")
    each = np.repeat(np.ascontiguousarray(wide), BLOCK, axis=0)[:count]
    return np.concatenate([each.view(np.uint8).reshape(count, -1), quants], axis=1)


def split_block_rows(rows: Bytes, cols: int) -> tuple[Bytes, Floats]:
    """Inverse of join_block_rows: quants and the float32 grid (see small_floats.e8m0_codes).

    Raises: ValueError if rows of one block have different scales.
    """
    width = 4 * -(-cols // BLOCK)
    each = np.ascontiguousarray(rows[:, :width])
    first = each[::BLOCK]
    if not np.array_equal(np.repeat(first, BLOCK, axis=0)[: rows.shape[0]], each):
        raise ValueError("fp8_block rows of one 128 x 128 block have different scales")
    return np.ascontiguousarray(rows[:, width:]), np.ascontiguousarray(first).view("<f4")


def split_block_e8m0_rows(rows: Bytes, cols: int) -> tuple[Bytes, Bytes]:
    """Inverse of join_block_rows for E8M0 scales: quants and the uint8 grid."""
    quants, grid = split_block_rows(rows, cols)
    return quants, e8m0_codes(grid)
