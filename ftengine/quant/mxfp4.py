"""mxfp4: 32 E2M1 values and one E8M0 scale; w = e2m1 * 2^(scale - 127). Read only.

byte 0      scale  E8M0; 255 makes the whole block NaN
byte 1..16  q      mxfp4:      byte i holds element 2i in the low nibble, 2i + 1 in the high one
                   mxfp4_gguf: byte i holds element i in the low nibble, i + 16 in the high one

Releases keep scales and quants in two tensors: join_rows and split_rows move their bytes. GGUF
files (GGML type 39) hold whole blocks; GGML itself reads the scale 255 as 2^128, we as NaN.
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat, nibbles
from ftengine.quant.small_floats import E2M1, E8M0, nibble_pairs

BLOCK_ELEMENTS = 32
_QUANT_BYTES = 16


def _decode(blocks: Bytes) -> Floats:
    values: Floats = E2M1[nibble_pairs(blocks[:, 1:])] * E8M0[blocks[:, :1]]
    return values


def _decode_gguf(blocks: Bytes) -> Floats:
    values: Floats = E2M1[nibbles(blocks[:, 1:])] * E8M0[blocks[:, :1]]
    return values


FORMAT = QuantFormat("mxfp4", BLOCK_ELEMENTS, 17, 1000, _decode)
GGUF_FORMAT = QuantFormat("mxfp4_gguf", BLOCK_ELEMENTS, 17, 39, _decode_gguf)


def join_rows(quants: Bytes, scales: Bytes) -> Bytes:
    """Rows of blocks from a release's two tensors.

    Shape: quants uint8 [..., cols / 2], scales uint8 [..., cols / 32] -> [..., cols / 32 * 17].
    Raises: ValueError if the two do not belong together.
    """
    if quants.shape != (*scales.shape[:-1], scales.shape[-1] * _QUANT_BYTES):
        raise ValueError(
            f"mxfp4 has one scale for 16 bytes of quants, got quants {quants.shape} and scales "
            f"{scales.shape}"
        )
    rows = np.empty((*scales.shape, FORMAT.block_bytes), dtype=np.uint8)
    rows[..., 0] = scales
    rows[..., 1:] = quants.reshape(*scales.shape, _QUANT_BYTES)
    return rows.reshape(*scales.shape[:-1], -1)


def split_rows(rows: Bytes) -> tuple[Bytes, Bytes]:
    """Inverse of join_rows: quants and scales."""
    blocks = rows.reshape(*rows.shape[:-1], -1, FORMAT.block_bytes)
    quants = np.ascontiguousarray(blocks[..., 1:]).reshape(*rows.shape[:-1], -1)
    return quants, np.ascontiguousarray(blocks[..., 0])
