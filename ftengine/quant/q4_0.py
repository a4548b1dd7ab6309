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


def _decode(blocks: Bytes) -> Floats:
    quants = nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8)
    values: Floats = quants * half_field(blocks, 0)
    return values


def _encode(values: Floats) -> Bytes:
    scale = signed_extreme(values) / np.float32(-8)
    levels = np.trunc(values * inverse_or_zero(scale) + np.float32(8.5))
    quants = np.clip(levels, 0, 15).astype(np.uint8)
    return np.concatenate([half_bytes(scale), join_nibbles(quants)], axis=-1)


FORMAT = QuantFormat("q4_0", 32, 18, 2, _decode, _encode)
