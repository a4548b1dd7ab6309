"""Rows by number and rows side by side: the embedding, and copies and sums of strided rows.

The embedding's table keeps the checkpoint's own blocks (not panels). Reference: linear.py.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def nibble_at(codes: tl.tensor, place: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Element of a block of 32 nibbles: the low ones first, then the high ones."""
    byte = tl.load(codes + place % 16, mask=live, other=0).to(tl.int32)
    return ((byte >> (place // 16 * 4)) & 15).to(tl.float32)


@triton.jit
def half_at(start: tl.tensor, index: tl.tensor, live: tl.tensor) -> tl.tensor:
    """A float16 of a row, counted in halves from its start."""
    return tl.load(start.to(tl.pointer_type(tl.float16)) + index, mask=live, other=0.0).to(
        tl.float32
    )


@triton.jit
def block_value(
    start: tl.tensor, column: tl.tensor, live: tl.tensor, FORMAT: tl.constexpr
) -> tl.tensor:
    """Elements of a row in blocks of 32 with a float16 scale in front."""
    block, place = (column // 32).to(tl.int64), column % 32
    if FORMAT == "q8_0":
        quant = tl.load(start + block * 34 + 2 + place, mask=live, other=0)
        value = quant.to(tl.int8, bitcast=True).to(tl.float32) * half_at(start, block * 17, live)
    elif FORMAT == "q4_0":
        quant = nibble_at(start + block * 18 + 2, place, live) - 8.0
        value = quant * half_at(start, block * 9, live)
    else:
        quant = nibble_at(start + block * 20 + 4, place, live)
        value = quant * half_at(start, block * 10, live) + half_at(start, block * 10 + 1, live)
    return value


@triton.jit
def embed_rows(
    table: tl.tensor,
    ids: tl.tensor,
    out: tl.tensor,
    row_bytes: tl.tensor,
    cols: tl.tensor,
    num_rows: tl.tensor,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out = rows of the table by id. FORMAT: f32, f16, bf16, q8_0, q4_0 or q4_1.

    Shape: table uint8 [ids there are, row_bytes]; ids int64, out float32 [num_rows, cols]. Grid:
    rows, blocks.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < cols
    start = table + tl.load(ids + row) * row_bytes
    if FORMAT == "f32":
        value = tl.load(start.to(tl.pointer_type(tl.float32)) + column, mask=live, other=0.0)
    elif FORMAT == "f16":
        value = half_at(start, column, live)
    elif FORMAT == "bf16":
        bits = tl.load(start.to(tl.pointer_type(tl.uint16)) + column, mask=live, other=0)
        value = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        value = block_value(start, column, live, FORMAT)
    tl.store(out + row * cols + column, value, mask=live)


@triton.jit
def add_rows(
    source: tl.tensor,
    target: tl.tensor,
    bias: tl.tensor,
    source_stride: tl.tensor,
    target_stride: tl.tensor,
    width: tl.tensor,
    factor: tl.tensor,
    num_rows: tl.tensor,
    ACCUMULATE: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """target (+)= factor * source + bias. Shape: both [num_rows, width], strides in numbers; bias
    [width]. Grid: rows, blocks.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    value = tl.load(source + row * source_stride + column, mask=live, other=0.0) * factor
    if BIAS:
        value += tl.load(bias + column, mask=live, other=0.0)
    place = target + row * target_stride + column
    if ACCUMULATE:
        value += tl.load(place, mask=live, other=0.0)
    tl.store(place, value, mask=live)
