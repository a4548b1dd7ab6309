"""f32: IEEE single, little endian. One element is a block of 4 bytes."""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats, QuantFormat


def _decode(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4")


def _encode(values: Floats) -> Bytes:
    return np.ascontiguousarray(values, dtype="<f4").view(np.uint8)


FORMAT = QuantFormat("f32", 1, 4, 0, _decode, _encode)
