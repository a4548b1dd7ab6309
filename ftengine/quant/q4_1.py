"""q4_1: 32 nibbles, a scale and a minimum; w = d * q + m.

byte 0..1   d   float16
byte 2..3   m   float16
byte 4..19  q   byte i: element i in the low nibble, element i + 16 in the high one
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
)


def _decode(blocks: Bytes) -> Floats:
    quants = nibbles(blocks[:, 4:]).astype(np.float32)
    return half_field(blocks, 0) * quants + half_field(blocks, 2)


def _encode(values: Floats) -> Bytes:
    lowest = values.min(axis=-1, keepdims=True)
    scale = (values.max(axis=-1, keepdims=True) - lowest) / np.float32(15)
    levels = np.trunc((values - lowest) * inverse_or_zero(scale) + np.float32(0.5))
    quants = np.clip(levels, 0, 15).astype(np.uint8)
    packed = join_nibbles(quants)
    return np.concatenate([half_bytes(scale), half_bytes(lowest), packed], axis=-1)


FORMAT = QuantFormat("q4_1", 32, 20, 3, _decode, _encode)
