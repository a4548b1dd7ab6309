"""q5_0: 32 five-bit values and one scale; w = d * (q - 16). Read only.

byte 0..1   d   float16
byte 2..5   h   uint32, bit k = bit 4 of element k
byte 6..21  q   byte i: element i in the low nibble, element i + 16 in the high one
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat, half_field, nibbles


def fifth_bits(packed: Bytes) -> Bytes:
    """Bit k of each little-endian uint32, moved to bit 4. Shape: uint8 [n, 4] -> uint8 [n, 32]."""
    bits: Bytes = np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)
    return bits


def _decode(blocks: Bytes) -> Floats:
    quants = nibbles(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])
    values: Floats = (quants.astype(np.float32) - np.float32(16)) * half_field(blocks, 0)
    return values


FORMAT = QuantFormat("q5_0", 32, 22, 6, _decode)
