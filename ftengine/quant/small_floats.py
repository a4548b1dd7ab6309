"""The 8-bit and 4-bit floats of quantised releases as exact float32 tables.

E2M1: sign, 2 exponent bits, 1 fraction bit; no infinity, no NaN.
E4M3 ("fn"): exponent bias 7, subnormals, largest 448, no infinity; codes 0x7f and 0xff are NaN.
E8M0: 2^(code - 127); code 0 is 2^-127 (a float32 subnormal), code 255 is NaN.
"""

from __future__ import annotations

import numpy as np

from ftengine.quant.base import Bytes, Floats

E8M0_NAN = 255


def _e4m3_table() -> Floats:
    codes = np.arange(256)
    exponent, fraction = (codes >> 3) & 15, (codes & 7) / 8.0
    magnitude = np.where(
        exponent == 0, np.ldexp(fraction, -6), np.ldexp(1.0 + fraction, exponent - 7)
    )
    values = np.where(codes & 128, -magnitude, magnitude)
    values[[0x7F, 0xFF]] = np.nan
    return values.astype(np.float32)


def _e8m0_table() -> Floats:
    values = np.ldexp(1.0, np.arange(256) - 127)
    values[E8M0_NAN] = np.nan
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _e2m1_table() -> Floats:
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return np.array(positive + [-value for value in positive], dtype=np.float32)


E2M1: Floats = _e2m1_table()
E4M3: Floats = _e4m3_table()
E8M0: Floats = _e8m0_table()


def e8m0_codes(scales: Floats) -> Bytes:
    """Inverse of the E8M0 table. Raises: ValueError naming a value that is no power of two."""
    values = np.ascontiguousarray(scales, dtype=np.float32)
    bits = values.view(np.uint32)
    codes: Bytes = np.where(np.isnan(values), E8M0_NAN, bits >> 23).astype(np.uint8)
    exact = E8M0[codes].view(np.uint32) == bits
    if not bool((exact | np.isnan(values)).all()):
        wrong = values[~(exact | np.isnan(values))].reshape(-1)[0]
        raise ValueError(f"{wrong} is no E8M0 scale; those are 2^-127 .. 2^127 and NaN")
    return codes


def nibble_pairs(packed: Bytes) -> Bytes:
    """Nibbles in the order of safetensors releases: byte i holds elements 2i (low), 2i + 1 (high).

    Shape: uint8 [n, b] -> uint8 [n, 2 * b].
    """
    out = np.empty((*packed.shape, 2), dtype=np.uint8)
    out[..., 0] = packed & np.uint8(15)
    out[..., 1] = packed >> np.uint8(4)
    return out.reshape(*packed.shape[:-1], -1)
