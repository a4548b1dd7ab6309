"""q4_k: 256 nibbles in 8 groups of 32, each with a 6-bit scale and minimum. Read only.

byte 0..1    d      float16
byte 2..3    dmin   float16
byte 4..15   12 bytes: 8 scales and 8 minima of 6 bits (six_bit_pairs)
byte 16..143 q      32 bytes per two groups: the even group in the low nibbles, the odd one high
w = d * scale[g] * q - dmin * minimum[g]
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat, half_field


def six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minima of the 8 groups. Shape: uint8 [n, 12] -> two uint8 [n, 8].

    Groups 0-3: scale in byte g, minimum in byte 4 + g, low 6 bits each. Groups 4-7: the low 4 bits
    share byte 4 + g (scale low, minimum high), the upper 2 bits are the top of bytes g - 4 and g.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = (first & 63, (third & 15) | ((first >> 6) << 4))
    minima = (second & 63, (third >> 4) | ((second >> 6) << 4))
    return np.concatenate(scales, axis=-1), np.concatenate(minima, axis=-1)


def group_nibbles(packed: Bytes) -> Bytes:
    """The 8 groups in order. Shape: uint8 [n, 128] -> uint8 [n, 8, 32]."""
    pairs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)


def scale_groups(blocks: Bytes, quants: Bytes) -> Floats:
    """d * scale * q - dmin * minimum for q4_k and q5_k. Shape: quants uint8 [n, 8, 32]."""
    scales, minima = six_bit_pairs(blocks[:, 4:16])
    factor = half_field(blocks, 0) * scales.astype(np.float32)
    offset = half_field(blocks, 2) * minima.astype(np.float32)
    values = factor[:, :, None] * quants.astype(np.float32) - offset[:, :, None]
    return values.reshape(-1, 256)


def _decode(blocks: Bytes) -> Floats:
    return scale_groups(blocks, group_nibbles(blocks[:, 16:144]))


FORMAT = QuantFormat("q4_k", 256, 144, 12, _decode)
