"""bf16: the upper half of an IEEE single, little endian. One element is a block of 2 bytes."""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat

_QUIET_NAN_BIT = np.uint32(1 << 22)


def _decode(blocks: Bytes) -> Floats:
    upper = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    values: Floats = (upper << np.uint32(16)).view(np.float32)
    return values


def _encode(values: Floats) -> Bytes:
    """Round to nearest even; NaNs keep their upper bits and become quiet."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = np.where(is_nan, bits | _QUIET_NAN_BIT, bits + np.uint32(0x7FFF) + odd)
    encoded: Bytes = (rounded >> np.uint32(16)).astype("<u2").view(np.uint8)
    return encoded


FORMAT = QuantFormat("bf16", 1, 2, 30, _decode, _encode)
