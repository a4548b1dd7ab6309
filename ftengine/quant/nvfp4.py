"""nvfp4: 16 E2M1 values, one E4M3 scale, one float32 for the tensor. Read only.

Row: 4 bytes float32 g, then blocks of 9 bytes:
byte 0     scale  E4M3; 0x7f and 0xff are NaN
byte 1..8  q      byte i holds element 2i in the low nibble, 2i + 1 in the high one
w = (e2m1 * scale) * g in nvfp4 (ModelOpt: weight_scale_2), (e2m1 * scale) / g in nvfp4_div
(compressed-tensors: weight_global_scale). Every row repeats the g of its tensor, so that rows of
several tensors may lie in one matrix.

GGUF files (GGML type 40) hold blocks of 64 elements in 36 bytes and have no g:
byte 0..3   scales of 16 elements each; the sign bit says nothing, 0x7f is 0
byte 4..35  q       8 bytes for each scale: element i in the low nibble of byte i, i + 8 in the high
split_ggml moves them; 0xff, which no writer makes, is 480 there and NaN here.
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat, RowHeader, float_bytes, nibbles
from ftengine.quant.small_floats import E2M1, E4M3, nibble_pairs

BLOCK_ELEMENTS = 16
_QUANT_BYTES = 8
_HEADER_BYTES = 4
GGML_TYPE = 40
_GGML_ELEMENTS, _GGML_SCALES, _GGML_BYTES = 64, 4, 36


def _decode(blocks: Bytes) -> Floats:
    values: Floats = E2M1[nibble_pairs(blocks[:, 1:])] * E4M3[blocks[:, :1]]
    return values


FORMAT = QuantFormat("nvfp4", BLOCK_ELEMENTS, 9, 1001, _decode, header=RowHeader())
DIVIDED_FORMAT = QuantFormat(
    "nvfp4_div", BLOCK_ELEMENTS, 9, 1002, _decode, header=RowHeader(divides=True)
)


def join_rows(quants: Bytes, scales: Bytes, factor: Floats | float) -> Bytes:
    """Rows of one matrix from a release's tensors; the same for both formats.

    Shape: quants uint8 [rows, cols / 2], scales uint8 [rows, cols / 16], factor one float32 (or
    one a row) -> uint8 [rows, 4 + cols / 16 * 9].
    Raises: ValueError if they do not belong together.
    """
    if quants.shape != (*scales.shape[:-1], scales.shape[-1] * _QUANT_BYTES) or quants.ndim != 2:
        raise ValueError(
            f"nvfp4 has one scale for 8 bytes of quants, got quants {quants.shape} and scales "
            f"{scales.shape}"
        )
    count, blocks = scales.shape
    rows = np.empty((count, _HEADER_BYTES + blocks * FORMAT.block_bytes), dtype=np.uint8)
    rows[:, :_HEADER_BYTES] = float_bytes(factor, count, "nvfp4 global scale")
    body = np.empty((count, blocks, FORMAT.block_bytes), dtype=np.uint8)
    body[..., 0] = scales
    body[..., 1:] = quants.reshape(count, blocks, _QUANT_BYTES)
    rows[:, _HEADER_BYTES:] = body.reshape(count, -1)
    return rows


def split_rows(rows: Bytes) -> tuple[Bytes, Bytes, Floats]:
    """Inverse of join_rows: quants, scales and the factor of every row (float32 [rows])."""
    body = rows[:, _HEADER_BYTES:].reshape(rows.shape[0], -1, FORMAT.block_bytes)
    factors = np.ascontiguousarray(rows[:, :_HEADER_BYTES]).view("<f4").reshape(-1)
    quants = np.ascontiguousarray(body[..., 1:]).reshape(rows.shape[0], -1)
    return quants, np.ascontiguousarray(body[..., 0]), factors


def ggml_row_bytes(cols: int) -> int:
    """Bytes of a row of `cols` elements, a multiple of 64, in GGML's blocks."""
    return cols // _GGML_ELEMENTS * _GGML_BYTES


def split_ggml(rows: Bytes) -> tuple[Bytes, Bytes]:
    """Quants and scales, as join_rows wants them, of rows of GGML's blocks.

    Shape: uint8 [rows, cols / 64 * 36] -> uint8 [rows, cols / 2], uint8 [rows, cols / 16].
    """
    count = rows.shape[0]
    blocks = rows.reshape(count, -1, _GGML_BYTES)
    stored = blocks[..., :_GGML_SCALES]
    scales = np.where(stored == 0x7F, np.uint8(0), stored & np.uint8(0x7F))
    halves = nibbles(blocks[..., _GGML_SCALES:].reshape(-1, _QUANT_BYTES))
    quants = halves[:, 0::2] | halves[:, 1::2] << np.uint8(4)
    return quants.reshape(count, -1), scales.reshape(count, -1)
