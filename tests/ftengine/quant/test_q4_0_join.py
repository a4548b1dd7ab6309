"""Codes and scales of int4 releases as q4_0 rows: exact, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from ftengine.quant import q4_0

ROWS, COLS = 3, 128


def codes_and_values(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    values = np.random.default_rng(seed).integers(0, 16, (ROWS, COLS)).astype(np.uint8)
    return values[:, 0::2] | values[:, 1::2] << 4, values.astype(np.float32) - 8


@pytest.mark.parametrize("group", [32, 64, COLS])
def test_rows_hold_what_codes_and_scales_say(group: int) -> None:
    codes, values = codes_and_values()
    scales = np.float32(2) ** np.arange(-16, -16 + ROWS * COLS // group, dtype=np.float32)
    scales = scales.reshape(ROWS, -1)
    rows = q4_0.join_rows(codes, scales)
    expected = values * scales.repeat(group, axis=1)
    assert np.array_equal(q4_0.FORMAT.dequantize(rows), expected)


@pytest.mark.parametrize("scale", [1e-9, 1.0009765625 + 2**-12, 1e6])
def test_a_scale_that_float16_does_not_hold_is_refused(scale: float) -> None:
    codes, _ = codes_and_values()
    scales = np.ones((ROWS, COLS // 32), np.float32)
    scales[1, 2] = scale
    with pytest.raises(ValueError, match="float16"):
        q4_0.join_rows(codes, scales)


def test_the_scale_of_a_group_of_zeros_does_not_matter() -> None:
    codes = np.full((ROWS, COLS // 2), 0x88, np.uint8)
    rows = q4_0.join_rows(codes, np.full((ROWS, COLS // 32), 1e-9, np.float32))
    assert not q4_0.FORMAT.dequantize(rows).any()
