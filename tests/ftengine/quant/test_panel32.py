"""panel32.v1: inverses, golden bytes and sizes."""

from __future__ import annotations

import numpy as np
import pytest

from ftengine.quant import panel32
from ftengine.quant.panel32 import PANEL_FORMATS, PanelFormat

by_format = pytest.mark.parametrize("fmt", PANEL_FORMATS, ids=lambda fmt: fmt.quant.name)


def random_rows(fmt: PanelFormat, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Any bytes; float32 factors that rows share are equal in 16 rows from the first on."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, fmt.quant.row_bytes(cols)), dtype=np.uint8)
    if fmt.shares_factors:
        first = fmt.quant.header_bytes(cols)
        raw[:, :first] = raw[np.arange(rows) // 16 * 16, :first]
    return raw


def whole(fmt: PanelFormat, cols: int) -> int:
    """The next whole number of groups."""
    return -(-cols // fmt.group_elements) * fmt.group_elements


@by_format
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("cols", [32, 96, 288])
def test_unpack_undoes_pack(fmt: PanelFormat, rows: int, cols: int) -> None:
    cols = whole(fmt, cols)
    raw = random_rows(fmt, rows, cols)
    packed = panel32.pack(fmt.quant, raw)
    assert packed.size == panel32.packed_bytes(fmt.quant, rows, cols)
    assert np.array_equal(panel32.unpack(fmt.quant, packed, rows, cols), raw)


@by_format
@pytest.mark.parametrize("rows", [1, 16, 17, 48])
def test_unpack_pair_undoes_pack_pair(fmt: PanelFormat, rows: int) -> None:
    cols = whole(fmt, 64)
    gate, up = random_rows(fmt, rows, cols, 1), random_rows(fmt, rows, cols, 2)
    packed = panel32.pack_pair(fmt.quant, gate, up)
    assert packed.size == panel32.packed_bytes(fmt.quant, rows, cols, paired=True)
    back_gate, back_up = panel32.unpack_pair(fmt.quant, packed, rows, cols)
    assert np.array_equal(back_gate, gate)
    assert np.array_equal(back_up, up)


@by_format
def test_rows_are_only_moved(fmt: PanelFormat) -> None:
    """Every byte of a whole panel occurs as often after packing as before (shared ones: once)."""
    raw = random_rows(fmt, 64, whole(fmt, 64))
    packed = panel32.pack(fmt.quant, raw)
    if fmt.shares_factors:
        first = fmt.quant.header_bytes(64)
        kept = [raw[16 * half, :first] for half in range(4)]
        raw = np.concatenate([raw[:, first:].ravel(), *kept, np.zeros(2 * 56, np.uint8)])
    assert np.array_equal(
        np.bincount(packed, minlength=256), np.bincount(raw.ravel(), minlength=256)
    )


def test_missing_rows_are_zero_bytes() -> None:
    packed = panel32.pack("q4_1", np.full((1, 20), 255, dtype=np.uint8))
    assert packed.size == 640
    assert int((packed == 255).sum()) == 20
    assert int((packed == 0).sum()) == 620


def test_golden_q4_1() -> None:
    """Row r, block b, byte i has the value r + 3 b + 7 i (mod 256); places computed by hand."""
    rows = np.zeros((32, 40), dtype=np.uint8)
    for r in range(32):
        for place in range(40):
            rows[r, place] = (r + 3 * (place // 20) + 7 * (place % 20)) % 256
    packed = panel32.pack("q4_1", rows)
    assert packed[0:4].tolist() == [0, 7, 1, 8]  # d of rows 0 and 1
    assert packed[62:64].tolist() == [31, 38]  # d of row 31
    assert packed[64:68].tolist() == [14, 21, 15, 22]  # m of rows 0 and 1
    assert packed[128:136].tolist() == [28, 35, 42, 49, 29, 36, 43, 50]  # word 0, rows 0 and 1
    assert packed[256:260].tolist() == [56, 63, 70, 77]  # word 1, row 0
    assert packed[636:640].tolist() == [143, 150, 157, 164]  # word 3, row 31
    assert packed[640:642].tolist() == [3, 10]  # second block


def test_golden_q8_0() -> None:
    rows = np.zeros((32, 34), dtype=np.uint8)
    rows[0] = np.arange(34)
    rows[1] = np.arange(34) + 100
    packed = panel32.pack("q8_0", rows)
    assert packed.size == 1088
    assert packed[0:4].tolist() == [0, 1, 100, 101]
    assert packed[64:72].tolist() == [2, 3, 4, 5, 102, 103, 104, 105]
    assert packed[64 + 7 * 128 :][:4].tolist() == [30, 31, 32, 33]


def test_golden_q6_k() -> None:
    """The scale stands behind the words in a row, in front of them in a panel."""
    rows = np.zeros((32, 210), dtype=np.uint8)
    rows[0] = np.arange(210)
    rows[1] = (np.arange(210) + 100) % 256
    packed = panel32.pack("q6_k", rows)
    assert packed.size == 6720
    assert packed[0:4].tolist() == [208, 209, 52, 53]  # d of rows 0 and 1
    assert packed[64:72].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]  # word 0
    assert packed[64 + 51 * 128 :][:4].tolist() == [204, 205, 206, 207]  # word 51, row 0


def test_golden_bf16_pair() -> None:
    """Panel 0 holds gate rows 0-15, then up rows 0-15; panel 1 the 17th of each."""
    gate = np.arange(17 * 4, dtype=np.uint8).reshape(17, 4)
    up = gate + 128
    packed = panel32.pack_pair("bf16", gate, up)
    assert packed.size == 256
    assert packed[:8].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert packed[64:68].tolist() == [128, 129, 130, 131]
    assert packed[128:132].tolist() == [64, 65, 66, 67]
    assert packed[132:192].tolist() == [0] * 60
    assert packed[192:196].tolist() == [192, 193, 194, 195]


def test_golden_mxfp4() -> None:
    """Three blocks of one row: the second joined group is filled up."""
    rows = np.zeros((32, 51), dtype=np.uint8)
    rows[0] = np.arange(51)
    rows[1] = np.arange(51) + 100
    packed = panel32.pack("mxfp4", rows)
    assert packed.size == 2 * 1088
    assert packed[0:2].tolist() == [0, 100]  # scales of block 0
    assert packed[32:34].tolist() == [17, 117]  # scales of block 1
    assert packed[64:72].tolist() == [1, 2, 3, 4, 101, 102, 103, 104]  # word 0 of block 0
    assert packed[64 + 3 * 128 :][:4].tolist() == [13, 14, 15, 16]  # word 3 of block 0
    assert packed[64 + 4 * 128 :][:4].tolist() == [18, 19, 20, 21]  # word 0 of block 1
    assert packed[1088:1090].tolist() == [34, 134]  # scales of block 2
    assert packed[1088 + 32 : 1088 + 64].tolist() == [0] * 32
    assert packed[1088 + 64 :][:4].tolist() == [35, 36, 37, 38]
    assert not packed[1088 + 64 + 512 :].any()
    assert np.array_equal(panel32.pack("mxfp4_gguf", rows), packed)


def test_golden_nvfp4() -> None:
    rows = np.zeros((32, 4 + 2 * 9), dtype=np.uint8)
    rows[0] = np.arange(22)
    rows[31] = np.arange(22) + 100
    packed = panel32.pack("nvfp4", rows)
    assert packed.size == 128 + 576
    assert packed[0:8].tolist() == [0, 1, 2, 3, 0, 0, 0, 0]  # factors of rows 0 and 1
    assert packed[124:128].tolist() == [100, 101, 102, 103]  # of row 31
    assert packed[128] == 4  # scale of block 0, row 0
    assert packed[128 + 31] == 104
    assert packed[128 + 32] == 13  # scale of block 1
    assert packed[192:196].tolist() == [5, 6, 7, 8]  # word 0 of block 0
    assert packed[192 + 128 :][:4].tolist() == [9, 10, 11, 12]
    assert packed[192 + 256 :][:4].tolist() == [14, 15, 16, 17]  # word 0 of block 1
    assert packed[192 + 384 + 124 :][:4].tolist() == [118, 119, 120, 121]  # word 1, row 31


def test_golden_fp8_block_pair() -> None:
    """Two scales for each 128 columns: gate's, then up's; then the words."""
    gate, up = np.zeros((2, 16, 2 * 4 + 132), dtype=np.uint8)
    gate[:, :8] = np.arange(8)
    up[:, :8] = np.arange(8) + 100
    gate[0, 8:] = np.arange(132)
    up[15, 8:] = np.arange(132) + 50
    packed = panel32.pack_pair("fp8_block", gate, up)
    assert packed.size == 64 + 132 * 32
    assert packed[:8].tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    assert packed[8:16].tolist() == [4, 5, 6, 7, 104, 105, 106, 107]
    assert packed[16:64].tolist() == [0] * 48
    assert packed[64:68].tolist() == [0, 1, 2, 3]  # word 0, row 0
    assert packed[64 + 124 : 64 + 128].tolist() == [50, 51, 52, 53]  # word 0, row 31
    assert packed[64 + 32 * 128 :][:4].tolist() == [128, 129, 130, 131]


def test_golden_fp8_tensor() -> None:
    rows = np.zeros((32, 4 + 8), dtype=np.uint8)
    rows[1] = np.arange(12)
    packed = panel32.pack("fp8_tensor", rows)
    assert packed.size == 128 + 8 * 32
    assert packed[4:8].tolist() == [0, 1, 2, 3]
    assert packed[132:136].tolist() == [4, 5, 6, 7]
    assert packed[128 + 132 : 128 + 136].tolist() == [8, 9, 10, 11]


def test_rows_of_half_a_panel_must_share_their_block_scales() -> None:
    rows = np.zeros((20, 4 + 128), dtype=np.uint8)
    rows[3, 0] = 1
    with pytest.raises(ValueError, match=r"rows 16n .. 16n \+ 15 must share their scales"):
        panel32.pack("fp8_block", rows)


def test_expert_rows_are_aligned_and_hold_both_parts() -> None:
    layout = panel32.expert_layout("q4_1", "q8_0", hidden=576, inter=1536)
    gate_up = 96 * 18 * 640
    assert layout.gate_up_offset == 0
    assert layout.down_offset == gate_up
    assert layout.row_bytes % 4096 == 0
    assert 0 <= layout.row_bytes - (gate_up + 18 * 48 * 1088) < 4096


def test_wrong_inputs_name_the_format_and_the_limit() -> None:
    with pytest.raises(
        ValueError, match="panel32 q4_1 needs a positive multiple of 32 columns, got 48"
    ):
        panel32.packed_bytes("q4_1", 10, 48)
    with pytest.raises(ValueError, match="fp8_block needs rows of float32 factors and then"):
        panel32.pack("fp8_block", np.zeros((4, 9), dtype=np.uint8))
    with pytest.raises(ValueError, match="panel32 bf16 needs rows of a multiple of 4 bytes"):
        panel32.pack("bf16", np.zeros((4, 6), dtype=np.uint8))
    with pytest.raises(ValueError, match="q2_k has no panel32 form"):
        panel32.packed_bytes("q2_k", 32, 256)
    with pytest.raises(ValueError, match="must have one shape"):
        panel32.pack_pair("f32", np.zeros((4, 8), np.uint8), np.zeros((5, 8), np.uint8))
    with pytest.raises(ValueError, match="is 640 bytes, got 641"):
        panel32.unpack("q4_1", np.zeros(641, dtype=np.uint8), 32, 32)
    assert panel32.supports("q8_0")
    assert not panel32.supports("q2_k")
    assert panel32.fits("mxfp4", 96)
    assert not panel32.fits("mxfp4", 80)
    assert panel32.fits("q4_k", 256)
    assert not panel32.fits("q4_k", 128)
