"""q5_1: 32 five-bit values, a scale and a minimum; w = d * q + m. Read only.

byte 0..1   d   float16
byte 2..3   m   float16
byte 4..7   h   uint32, bit k = bit 4 of element k
byte 8..23  q   byte i: element i in the low nibble, element i + 16 in the high one
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat, half_field, nibbles
from ftengine.quant.q5_0 import fifth_bits


def _decode(blocks: Bytes) -> Floats:
    quants = (nibbles(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])).astype(np.float32)
    return half_field(blocks, 0) * quants + half_field(blocks, 2)


FORMAT = QuantFormat("q5_1", 32, 24, 7, _decode)
