"""q4_0: 32 nibbles and one scale; w = d * (q - 8).

byte 0..1   d   float16
byte 2..17  q   byte i: element i in the low nibble, element i + 16 in the high one
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import (
    Bytes,
    Floats,
    QuantFormat,
    half_bytes,
    half_field,
    inverse_or_zero,
    join_nibbles,
    nibbles,
    signed_extreme,
)

_BLOCK = 32


def _decode(blocks: Bytes) -> Floats:
    quants = nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)
    values: Floats = quants * half_field(blocks, 0)
    return values


def _encode(values: Floats) -> Bytes:
    scale = signed_extreme(values) / np.float32(-8)
    levels = np.trunc(values * inverse_or_zero(scale) + np.float32(8.5))
    quants = np.clip(levels, 0, 15).astype(np.uint8)
    return np.concatenate([half_bytes(scale), join_nibbles(quants)], axis=-1)


def join_rows(codes: Bytes, scales: Floats) -> Bytes:
    """Codes in the order of elements and the scales of their groups as rows of blocks.

    Shape: codes uint8 [rows, cols / 2], the even element in the low nibble, each value + 8; scales
    float32 [rows, groups], groups as wide as whole blocks; -> uint8 [rows, row_bytes].
    Raises: ValueError for a scale that float16 does not hold.
    """
    rows, half = codes.shape
    pairs = codes.reshape(-1, _BLOCK // 2)
    quants = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(-1, _BLOCK)
    wide = np.repeat(scales, 2 * half // _BLOCK // scales.shape[1], axis=1).reshape(-1, 1)
    # the scale of a group of zeros means nothing
    wide = np.where((quants == 8).all(axis=1, keepdims=True), np.float32(0), wide)
    with np.errstate(over="ignore"):
        exact = wide.astype(np.float16).astype(np.float32) == wide
    if not exact.all():
        raise ValueError("a scale of its groups of 4 bits lies outside of what float16 holds")
    blocks = np.concatenate([half_bytes(wide), join_nibbles(quants)], axis=1)
    return blocks.reshape(rows, -1)


FORMAT = QuantFormat("q4_0", _BLOCK, 18, 2, _decode, _encode)
