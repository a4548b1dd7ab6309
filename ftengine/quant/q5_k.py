"""q5_k: 256 five-bit values in 8 groups of 32, scales and minima as in q4_k. Read only.

byte 0..15    as in q4_k
byte 16..47   h   byte i: bit g = bit 4 of element i of group g
byte 48..175  q   nibbles as in q4_k
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat
from ftengine.quant.q4_k import group_nibbles, scale_groups

_GROUP_BITS = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)


def _decode(blocks: Bytes) -> Floats:
    high = ((blocks[:, None, 16:48] >> _GROUP_BITS) & np.uint8(1)) << np.uint8(4)
    return scale_groups(blocks, group_nibbles(blocks[:, 48:176]) | high)


FORMAT = QuantFormat("q5_k", 256, 176, 13, _decode)
