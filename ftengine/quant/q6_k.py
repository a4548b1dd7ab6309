"""q6_k: 256 six-bit values in 16 groups of 16, each with a signed 8-bit scale. Read only.

byte 0..127    low nibbles, 64 bytes per half of the block: byte i of a half holds element i
               (low) and element i + 64 (high)
byte 128..191  upper two bits, 32 bytes per half: byte i holds elements i, i + 32, i + 64, i + 96
byte 192..207  int8 scale of each group
byte 208..209  d   float16
w = d * scale[g] * (q - 32)
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat, half_field

_TWO_BIT_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)


def _decode(blocks: Bytes) -> Floats:
    low = blocks[:, 0:128].reshape(-1, 2, 1, 64)
    four: Bytes = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 256)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _TWO_BIT_SHIFTS) & np.uint8(3)
    quants = (four | (high.reshape(-1, 256) << np.uint8(4))).astype(np.float32) - np.float32(32)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    factor = half_field(blocks, 208) * scales
    values: Floats = (quants.reshape(-1, 16, 16) * factor[:, :, None]).reshape(-1, 256)
    return values


FORMAT = QuantFormat("q6_k", 256, 210, 14, _decode)
