"""Codes and scales become rows whose values an independent float64 computation confirms."""

from __future__ import annotations

import numpy as np
import pytest

from ftengine.loader.joined import Scales, joined_rows
from ftengine.quant import format_named
from tests.fakes.quantised import E2M1, E4M3

RNG = np.random.default_rng(5)


def codes(size: int) -> np.ndarray:
    """Random bytes without the E4M3 NaNs."""
    found = RNG.integers(0, 256, size, dtype=np.uint8)
    return np.where(found & 127 == 127, 0, found).astype(np.uint8)


def nibbles(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)


@pytest.mark.parametrize("divides", [False, True])
def test_nvfp4_multiplies_or_divides_by_its_factor(divides: bool) -> None:
    packed, scales = codes(5 * 24), RNG.integers(0, 127, 5 * 3, dtype=np.uint8)
    factor = np.array([0.37], "<f4")
    fmt = "nvfp4_div" if divides else "nvfp4"
    rows = joined_rows(fmt, (5, 48), packed, Scales(scales, "e4m3"), factor.view(np.uint8))
    steps = E4M3[scales].reshape(5, 3).repeat(16, 1)
    whole = 1 / np.float64(factor[0]) if divides else np.float64(factor[0])
    expected = E2M1[nibbles(packed.reshape(5, 24))] * steps * whole
    np.testing.assert_allclose(format_named(fmt).dequantize(rows), expected, rtol=3e-7)


def test_fp8_blocks_with_partial_edges() -> None:
    shape, grid = (130, 136), np.array([[1.5, 0.25], [3.0, 0.125]], "<f4")
    data = codes(shape[0] * shape[1])
    scales = Scales(grid.reshape(-1).view(np.uint8), "f32")
    rows = joined_rows("fp8_block", shape, data, scales)
    every = grid.repeat(128, 0)[:130].repeat(128, 1)[:, :136]
    expected = E4M3[data.reshape(shape)] * every
    np.testing.assert_array_equal(format_named("fp8_block").dequantize(rows), expected)


def test_what_does_not_belong_together_is_refused() -> None:
    one, floats = np.zeros(4, np.uint8), Scales(np.zeros(4, np.uint8), "f32")
    good = np.zeros(32 * 2, np.uint8)
    with pytest.raises(ValueError, match="bytes of codes"):
        joined_rows("fp8_tensor", (3, 32), good, floats)
    with pytest.raises(ValueError, match="has scales of"):
        joined_rows("fp8_tensor", (2, 32), good, Scales(one, "e8m0"))
    with pytest.raises(ValueError, match="bytes of scales"):
        joined_rows("fp8_block", (2, 32), good, Scales(np.zeros(8, np.uint8), "f32"))
    with pytest.raises(ValueError, match="factor"):
        joined_rows("fp8_tensor", (2, 32), good, floats, one)
    with pytest.raises(ValueError, match="multiple of 16"):
        joined_rows("nvfp4", (2, 40), good, Scales(one, "e4m3"), one)
