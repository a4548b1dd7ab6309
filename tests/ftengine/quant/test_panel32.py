"""panel32.v1: inverses, golden bytes and sizes."""

from __future__ import annotations

import numpy as np
import pytest

from ftengine.quant import panel32
from ftengine.quant.panel32 import PANEL_FORMATS, PanelFormat

by_format = pytest.mark.parametrize("fmt", PANEL_FORMATS, ids=lambda fmt: fmt.quant.name)


def random_rows(fmt: PanelFormat, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    width = cols // fmt.group_elements * fmt.group_bytes
    return np.random.default_rng(seed).integers(0, 256, (rows, width), dtype=np.uint8)


@by_format
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("cols", [32, 96])
def test_unpack_undoes_pack(fmt: PanelFormat, rows: int, cols: int) -> None:
    raw = random_rows(fmt, rows, cols)
    packed = panel32.pack(fmt.quant, raw)
    assert packed.size == panel32.packed_bytes(fmt.quant, rows, cols)
    assert np.array_equal(panel32.unpack(fmt.quant, packed, rows, cols), raw)


@by_format
@pytest.mark.parametrize("rows", [1, 16, 17, 48])
def test_unpack_pair_undoes_pack_pair(fmt: PanelFormat, rows: int) -> None:
    gate, up = random_rows(fmt, rows, 64, 1), random_rows(fmt, rows, 64, 2)
    packed = panel32.pack_pair(fmt.quant, gate, up)
    assert packed.size == panel32.packed_bytes(fmt.quant, rows, 64, paired=True)
    back_gate, back_up = panel32.unpack_pair(fmt.quant, packed, rows, 64)
    assert np.array_equal(back_gate, gate)
    assert np.array_equal(back_up, up)


@by_format
def test_rows_are_only_moved(fmt: PanelFormat) -> None:
    """Every byte of a whole panel occurs as often after packing as before."""
    raw = random_rows(fmt, 64, 64)
    packed = panel32.pack(fmt.quant, raw)
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
    with pytest.raises(ValueError, match="panel32 bf16 needs rows of a multiple of 4 bytes"):
        panel32.pack("bf16", np.zeros((4, 6), dtype=np.uint8))
    with pytest.raises(ValueError, match="q6_k has no panel32 form"):
        panel32.packed_bytes("q6_k", 32, 256)
    with pytest.raises(ValueError, match="must have one shape"):
        panel32.pack_pair("f32", np.zeros((4, 8), np.uint8), np.zeros((5, 8), np.uint8))
    with pytest.raises(ValueError, match="is 640 bytes, got 641"):
        panel32.unpack("q4_1", np.zeros(641, dtype=np.uint8), 32, 32)
    assert panel32.supports("q8_0")
    assert not panel32.supports("q4_k")
