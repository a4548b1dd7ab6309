"""q8_0: 32 signed bytes and one scale; w = d * q.

byte 0..1   d   float16
byte 2..33  q   int8[32], element k at byte 2 + k
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
)


def _decode(blocks: Bytes) -> Floats:
    quants = blocks[:, 2:].view(np.int8).astype(np.float32)
    return quants * half_field(blocks, 0)


def _encode(values: Floats) -> Bytes:
    scale = np.abs(values).max(axis=-1, keepdims=True) / np.float32(127)
    scaled = values * inverse_or_zero(scale)
    # Halves go away from zero, as in the format's reference encoder.
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    whole += (magnitude - whole) >= np.float32(0.5)
    quants = (np.sign(scaled) * whole).astype(np.int8)
    return np.concatenate([half_bytes(scale), quants.view(np.uint8)], axis=-1)


FORMAT = QuantFormat("q8_0", 32, 34, 8, _decode, _encode)
