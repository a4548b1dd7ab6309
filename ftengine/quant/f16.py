"""f16: IEEE half, little endian. One element is a block of 2 bytes."""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat


def _decode(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _encode(values: Floats) -> Bytes:
    with np.errstate(over="ignore"):
        return values.astype("<f2").view(np.uint8)


FORMAT = QuantFormat("f16", 1, 2, 1, _decode, _encode)
