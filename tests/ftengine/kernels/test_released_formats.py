"""FP4 and FP8 products at the edges of their codes, against float64, on every target."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank, PackedWeight
from ftengine.kernels.reference.expert_ffn import expert_ffn
from ftengine.quant import format_named, fp8, mxfp4, nvfp4, panel32

from .operand_makers import RELEASED, make_bank, make_weight, random_rows, route

ROWS, COLS = 48, 128
MAX_E4M3, NAN_E4M3 = 0x7E, 0x7F


def packed(fmt: str, rows: np.ndarray, cols: int = COLS) -> PackedWeight:
    return PackedWeight(torch.from_numpy(panel32.pack(fmt, rows)).clone(), fmt, len(rows), cols)


def check(native: NativeKernels, fmt: str, rows: np.ndarray, x: torch.Tensor) -> torch.Tensor:
    """Every row within float32 rounding of the sum of its absolute terms; NaN where float64 is."""
    exact = torch.from_numpy(format_named(fmt).dequantize(rows).astype(np.float64))
    wide = x.double()
    expected, terms = wide @ exact.T, wide.abs() @ exact.abs().T
    got = native.linear(x, packed(fmt, rows, x.shape[1]))
    nan = expected.isnan()
    assert torch.equal(got.isnan(), nan)
    assert bool(((got.double() - expected).abs() <= 2e-6 * terms)[~nan].all())
    return got


@pytest.mark.parametrize("fmt", RELEASED)
def test_every_code_and_its_position(native: NativeKernels, fmt: str) -> None:
    """One-hot activations read the matrix back: exact but for one rounding of the scales."""
    rows = random_rows(fmt, 40, 160, 1)
    values = torch.from_numpy(format_named(fmt).dequantize(rows))
    got = native.linear(torch.eye(160), packed(fmt, rows, 160)).T
    assert bool(((got - values).abs() <= 1.2e-7 * values.abs()).all())


@pytest.mark.parametrize("fmt", ["mxfp4", "mxfp4_gguf"])
def test_mxfp4_scales_at_their_ends(native: NativeKernels, fmt: str) -> None:
    quants = np.random.default_rng(2).integers(0, 256, (ROWS, COLS // 2), dtype=np.uint8)
    scales = np.full((ROWS, COLS // 32), 127, dtype=np.uint8)
    scales[:10] = 0  # 2^-127, a subnormal
    scales[10:20] = 1
    tiny = mxfp4.join_rows(quants, scales)
    check(native, fmt, tiny[:20], torch.randn(3, COLS) * 2.0**90)
    scales[20:30] = 254
    largest = mxfp4.join_rows(quants & 0xBB, scales)  # below 2, else float32 has no such weight
    check(native, fmt, largest[20:], torch.randn(3, COLS) * 2.0**-20)
    scales[:] = 127
    scales[33, 2] = 255
    got = check(native, fmt, mxfp4.join_rows(quants, scales), torch.randn(9, COLS))
    assert got.isnan().sum(dim=0).nonzero().flatten().tolist() == [33]


@pytest.mark.parametrize("fmt", ["nvfp4", "nvfp4_div"])
def test_nvfp4_scales_at_their_ends(native: NativeKernels, fmt: str) -> None:
    quants = np.random.default_rng(3).integers(0, 256, (ROWS, COLS // 2), dtype=np.uint8)
    scales = np.zeros((ROWS, COLS // 16), dtype=np.uint8)
    scales[8:24] = np.arange(1, 9, dtype=np.uint8)  # 1..7 are subnormal
    scales[24:32] = MAX_E4M3
    scales[32:] = 0x80 | MAX_E4M3
    factor = np.float32(2.0**-9 / 3)
    rows = nvfp4.join_rows(quants, scales, factor)
    assert bool((check(native, fmt, rows, torch.randn(3, COLS))[:, :8] == 0).all())
    for bad in (NAN_E4M3, 0x80 | NAN_E4M3):
        scales[5, 7] = bad
        rows = nvfp4.join_rows(quants, scales, factor)
        got = check(native, fmt, rows, torch.randn(9, COLS))
        assert got.isnan().sum(dim=0).nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize("fmt", ["fp8_tensor", "fp8_block", "fp8_block_e8m0"])
def test_fp8_codes_at_their_ends(native: NativeKernels, fmt: str) -> None:
    codes = np.zeros((ROWS, COLS), dtype=np.uint8)
    codes[:16] = np.tile(np.array([1, 7, 8, 0x81, 0x87, 0x88, 0, 0x80], dtype=np.uint8), 16)
    codes[16:32] = MAX_E4M3
    codes[32:] = 0x80 | MAX_E4M3
    join = fp8.join_tensor_rows if fmt == "fp8_tensor" else fp8.join_block_rows
    scale = np.uint8([[117]]) if fmt == "fp8_block_e8m0" else np.float32([[1 / 3]])
    check(native, fmt, join(codes, scale), torch.randn(3, COLS))
    for column, bad in ((0, NAN_E4M3), (101, 0x80 | NAN_E4M3), (102, NAN_E4M3), (127, 0xFF)):
        poisoned = codes.copy()
        poisoned[20, column] = bad
        got = check(native, fmt, join(poisoned, scale), torch.randn(9, COLS))
        assert got.isnan().sum(dim=0).nonzero().flatten().tolist() == [20]
    nan = np.uint8([[255]]) if fmt == "fp8_block_e8m0" else np.float32([[np.nan]])
    assert bool(check(native, fmt, join(codes, nan), torch.randn(2, COLS)).isnan().all())


def test_blocks_of_a_ceil_grid_have_their_own_scales(native: NativeKernels) -> None:
    """Rows 128.. and columns 128.. of a matrix that fills neither block."""
    codes = np.random.default_rng(4).integers(0, 127, (150, 132), dtype=np.uint8)
    scales = np.float32([[1.0, 100.0], [0.01, 7.0]])
    check(native, "fp8_block", fp8.join_block_rows(codes, scales), torch.randn(5, 132))


BANKS = (
    ("mxfp4", "mxfp4", 4, 64, 96),
    ("mxfp4_gguf", "mxfp4_gguf", 4, 96, 64),
    ("nvfp4", "nvfp4_div", 4, 48, 80),
    ("fp8_tensor", "fp8_block_e8m0", 4, 64, 48),
    ("fp8_block", "fp8_block", 5, 192, 200),
    ("fp8_block", "fp8_block", 3, 640, 36),
    ("fp8_block", "mxfp4", 3, 256, 320),
)


@pytest.mark.parametrize("shape", BANKS, ids=lambda shape: "-".join(map(str, shape)))
def test_routed_layers_equal_the_reference_in_any_batch(
    native: NativeKernels, shape: tuple[str, str, int, int, int]
) -> None:
    bank = make_bank(*shape)
    ids, weights = route(70, 2, bank.num_experts)
    x = torch.randn(70, bank.hidden)
    expected = expert_ffn(x, ids, weights, bank)
    whole = native.expert_ffn(x, ids, weights, bank)
    assert (whole - expected).abs().max() <= 3e-6 * expected.abs().max()
    for tokens in (1, 2, 3, 5, 8, 17):
        part = native.expert_ffn(x[:tokens], ids[:tokens], weights[:tokens], bank)
        assert torch.equal(part, whole[:tokens])
    for threads in (1, 3):
        native.set_threads(threads)
        assert torch.equal(native.expert_ffn(x, ids, weights, bank), whole)


def test_gate_and_up_may_have_different_scales(native: NativeKernels) -> None:
    """The same codes; up is a thousand times gate in one expert and a thousandth in the other."""
    hidden, inter = 160, 48
    codes = np.random.default_rng(5).integers(0, 127, (inter, hidden), dtype=np.uint8)
    layout = panel32.expert_layout("fp8_block", "fp8_block", hidden, inter)
    data = torch.zeros(2, layout.row_bytes, dtype=torch.uint8)
    down = panel32.pack("fp8_block", random_rows("fp8_block", hidden, inter, 6))
    for expert, up_scale in enumerate((1e-1, 1e-7)):
        gate = fp8.join_block_rows(codes, np.full((1, 2), 1e-4, dtype=np.float32))
        up = fp8.join_block_rows(codes, np.full((1, 2), up_scale, dtype=np.float32))
        pair = panel32.pack_pair("fp8_block", gate, up)
        data[expert, : len(pair)] = torch.from_numpy(pair)
        data[expert, layout.down_offset : layout.down_offset + len(down)] = torch.from_numpy(down)
    bank = ExpertBank(data, layout, "fp8_block", "fp8_block", hidden, inter)
    x, weights = torch.randn(4, hidden), torch.ones(4, 1)
    for expert in (0, 1):
        ids = torch.full((4, 1), expert, dtype=torch.int32)
        expected = expert_ffn(x, ids, weights, bank)
        got = native.expert_ffn(x, ids, weights, bank)
        assert (got - expected).abs().max() <= 3e-6 * expected.abs().max()


def test_rows_that_a_panel_lacks_do_no_harm(native: NativeKernels) -> None:
    for fmt in RELEASED:
        weight = make_weight(fmt, 33, 128)
        assert bool(native.linear(torch.randn(3, 128), weight).isfinite().all())
