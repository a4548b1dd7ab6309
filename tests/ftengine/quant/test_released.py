"""FP4 and FP8 formats against torch's float8 types and float64 tables of the test's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ftengine.quant import format_named, fp8, mxfp4, nvfp4
from ftengine.quant.small_floats import E2M1, E4M3, E8M0, e8m0_codes

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
CODES = np.arange(256, dtype=np.uint8)


def torch_values(codes: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(codes).view(dtype).float().numpy()


def nibble(quants: np.ndarray, column: int) -> np.ndarray:
    """Codes of one column, low nibble first."""
    byte = quants[:, column // 2]
    return byte >> 4 if column % 2 else byte & 15


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Bit for bit, any NaN equal to any other."""
    nan = np.isnan(theirs)
    a, b = ours.view(np.uint32)[~nan], theirs.astype(np.float32).view(np.uint32)[~nan]
    return np.array_equal(np.isnan(ours), nan) and np.array_equal(a, b)


def test_tables_are_those_of_torch() -> None:
    assert same(E4M3, torch_values(CODES, torch.float8_e4m3fn))
    assert same(E8M0, torch_values(CODES, torch.float8_e8m0fnu))
    assert same(E2M1, FP4)
    assert E4M3[0x7E] == 448
    assert E4M3[1] == 2.0**-9
    assert E8M0[0] == 2.0**-127


def test_e8m0_codes_are_the_inverse() -> None:
    assert np.array_equal(e8m0_codes(E8M0), CODES)
    for wrong in (0.0, 3.0, -1.0, float("inf")):
        with pytest.raises(ValueError, match="is no E8M0 scale"):
            e8m0_codes(np.array([1.0, wrong], dtype=np.float32))


def test_mxfp4_is_table_times_power_of_two() -> None:
    rng = np.random.default_rng(1)
    quants = rng.integers(0, 256, (7, 48), dtype=np.uint8)
    scales = rng.integers(0, 255, (7, 3), dtype=np.uint8)
    scales[0] = (0, 1, 255)
    rows = mxfp4.join_rows(quants, scales)
    values = format_named("mxfp4").dequantize(rows)
    for column in range(96):
        power = np.ldexp(1.0, scales[:, column // 32].astype(int) - 127)
        power[scales[:, column // 32] == 255] = np.nan
        with np.errstate(over="ignore"):
            assert same(values[:, column], (FP4[nibble(quants, column)] * power).astype(np.float32))
    assert all(map(np.array_equal, mxfp4.split_rows(rows), (quants, scales)))


def test_the_two_orders_of_mxfp4_hold_the_same_elements() -> None:
    rows = np.random.default_rng(2).integers(0, 255, (5, 34), dtype=np.uint8)
    ours = format_named("mxfp4").dequantize(rows).reshape(5, 2, 16, 2)
    gguf_order = format_named("mxfp4_gguf").dequantize(rows).reshape(5, 2, 2, 16)
    assert same(
        gguf_order.reshape(-1), np.ascontiguousarray(ours.transpose(0, 1, 3, 2)).reshape(-1)
    )


@pytest.mark.parametrize("fmt", ["nvfp4", "nvfp4_div"])
def test_nvfp4_is_table_times_scale_and_the_tensors_factor(fmt: str) -> None:
    rng = np.random.default_rng(3)
    quants = rng.integers(0, 256, (6, 24), dtype=np.uint8)
    scales = rng.integers(0, 256, (6, 3), dtype=np.uint8)
    factor = np.float32(1234.5)
    rows = nvfp4.join_rows(quants, scales, factor)
    values = format_named(fmt).dequantize(rows)
    wide = torch_values(scales, torch.float8_e4m3fn)
    for column in range(48):
        inner = (FP4[nibble(quants, column)] * wide[:, column // 16]).astype(np.float32)
        assert same(values[:, column], inner / factor if fmt == "nvfp4_div" else inner * factor)
    back = nvfp4.split_rows(rows)
    assert all(map(np.array_equal, back, (quants, scales, np.full(6, factor))))


@pytest.mark.parametrize("count", [1, 5])
def test_fp8_with_a_scale_per_tensor_or_per_channel(count: int) -> None:
    rng = np.random.default_rng(4)
    quants = rng.integers(0, 256, (5, 37), dtype=np.uint8)
    scales = rng.uniform(1e-3, 1, (count, 1)).astype(np.float32)
    rows = fp8.join_tensor_rows(quants, scales)
    expected = torch_values(quants, torch.float8_e4m3fn) * scales
    assert same(format_named("fp8_tensor").dequantize(rows), expected)
    back = fp8.split_tensor_rows(rows)
    assert np.array_equal(back[0], quants)
    assert np.array_equal(back[1], np.broadcast_to(scales[:, 0], 5))


@pytest.mark.parametrize("shape", [(128, 128), (130, 300), (1, 4), (576, 129)])
@pytest.mark.parametrize("fmt", ["fp8_block", "fp8_block_e8m0"])
def test_fp8_block_scales_lie_on_a_ceil_grid(fmt: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    quants = rng.integers(0, 256, shape, dtype=np.uint8)
    grid = (-(-shape[0] // 128), -(-shape[1] // 128))
    e8m0 = rng.integers(0, 256, grid, dtype=np.uint8)
    stored = e8m0 if fmt == "fp8_block_e8m0" else rng.uniform(1e-3, 1, grid).astype(np.float32)
    wide = torch_values(e8m0, torch.float8_e8m0fnu) if fmt == "fp8_block_e8m0" else stored
    expected = torch_values(quants, torch.float8_e4m3fn)
    with np.errstate(over="ignore"):
        for row in range(shape[0]):
            for block in range(grid[1]):
                expected[row, 128 * block : 128 * block + 128] *= wide[row // 128, block]
    rows = fp8.join_block_rows(quants, stored)
    assert same(format_named(fmt).dequantize(rows), expected)
    split = fp8.split_block_e8m0_rows if fmt == "fp8_block_e8m0" else fp8.split_block_rows
    assert all(map(np.array_equal, split(rows, shape[1]), (quants, stored)))


def test_row_sizes_have_an_inverse() -> None:
    for name in ("mxfp4", "nvfp4", "nvfp4_div", "fp8_tensor", "fp8_block", "fp8_block_e8m0"):
        fmt = format_named(name)
        for cols in range(fmt.block_elements, 700, fmt.block_elements):
            assert fmt.row_cols(fmt.row_bytes(cols)) == cols


def test_parts_that_do_not_belong_together_are_refused() -> None:
    quants, scales = np.zeros((4, 32), np.uint8), np.zeros((4, 3), np.uint8)
    with pytest.raises(ValueError, match="mxfp4 has one scale for 16 bytes"):
        mxfp4.join_rows(quants, scales)
    with pytest.raises(ValueError, match="nvfp4 has one scale for 8 bytes"):
        nvfp4.join_rows(quants, scales, 1.0)
    with pytest.raises(ValueError, match="nvfp4 global scale: need 1 or 4 values, got 2"):
        nvfp4.join_rows(quants, np.zeros((4, 4), np.uint8), np.ones(2, np.float32))
    with pytest.raises(ValueError, match="fp8_tensor scale: need 1 or 4 values, got 3"):
        fp8.join_tensor_rows(quants, np.ones(3, np.float32))
    with pytest.raises(
        ValueError, match=r"fp8_block \[4, 32\] needs scales \[1, 1\], got \[2, 1\]"
    ):
        fp8.join_block_rows(quants, np.ones((2, 1), np.float32))
    rows = fp8.join_block_rows(quants, np.ones((1, 1), np.float32))
    rows[2, 0] = 9
    with pytest.raises(ValueError, match="have different scales"):
        fp8.split_block_rows(rows, 32)
    with pytest.raises(ValueError, match="nvfp4 rows are uint8, float32 factors and a multiple"):
        format_named("nvfp4").dequantize(np.zeros((1, 12), np.uint8))
