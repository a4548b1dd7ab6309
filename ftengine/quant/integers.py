"""i32 and i64: whole numbers, little endian, of tables that no kernel computes with."""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import OWN_IDS, Bytes, Floats, QuantFormat


def _decode_i32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<i4").astype(np.float32)


def _decode_i64(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<i8").astype(np.float32)


I32_FORMAT = QuantFormat("i32", 1, 4, OWN_IDS + 32, _decode_i32)
I64_FORMAT = QuantFormat("i64", 1, 8, OWN_IDS + 64, _decode_i64)
"""Decoded to float32, which holds whole numbers below 2^24 as they are."""
