"""Rows by number and rows side by side: the embedding; copies, sums, gates of strided rows.

The embedding's table keeps the checkpoint's own blocks (not panels). Reference: linear.py, rows.py.
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


@triton.jit
def sigmoid(x: tl.tensor) -> tl.tensor:
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def gate_rows(
    x: tl.tensor,
    gate: tl.tensor,
    index: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    gate_stride: tl.tensor,
    out_stride: tl.tensor,
    width: tl.tensor,
    part: tl.tensor,
    num_rows: tl.tensor,
    KIND: tl.constexpr,
    INDEXED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out = x * KIND(gate). KIND: plain, sigmoid or silu; x may be out.

    Shape: x, out [num_rows, width]; gate [num_rows, part], once for each `part` of a row; INDEXED:
    row index[i] of it for row i; strides in numbers. Grid: rows, blocks.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    gates = row
    if INDEXED:
        gates = tl.load(index + row).to(tl.int64)
    factor = tl.load(gate + gates * gate_stride + column % part, mask=live, other=0.0)
    if KIND == "sigmoid":
        factor = sigmoid(factor)
    elif KIND == "silu":
        factor = factor * sigmoid(factor)
    value = tl.load(x + row * x_stride + column, mask=live, other=0.0)
    tl.store(out + row * out_stride + column, value * factor, mask=live)


@triton.jit
def move_heads(
    x: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    heads: tl.tensor,
    from_dim: tl.tensor,
    to_dim: tl.tensor,
    turns: tl.tensor,
    num_rows: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Heads made longer by zeros, or shorter; heads of `turns` groups come in turns.

    Shape: x [num_rows, heads * from_dim], out [num_rows, heads * to_dim], strides in numbers; both
    may begin at one address; BLOCK >= heads * to_dim. Grid: rows.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    live = at < heads * to_dim
    head, element = at // to_dim, at % to_dim
    source = head % turns * (heads // turns) + head // turns
    there = live & (element < from_dim)
    value = tl.load(x + row * x_stride + source * from_dim + element, mask=there, other=0.0)
    # all must be read before any is overwritten
    tl.debug_barrier()
    tl.store(out + row * out_stride + at, value, mask=live)


@triton.jit
def squash_rows(
    x: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    width: tl.tensor,
    limit: tl.tensor,
    num_rows: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out = KIND(x): sigmoid; tanh, limit * tanh(x / limit); clamp, to -limit .. limit; fill, the
    limit itself.

    Shape: x (not read by fill), out [num_rows, width]; strides in numbers. Grid: rows, blocks.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = column < width
    value = tl.full([BLOCK], 1.0, tl.float32)
    if KIND != "fill":
        value = tl.load(x + row * x_stride + column, mask=live, other=0.0)
    if KIND == "sigmoid":
        value = sigmoid(value)
    elif KIND == "tanh":
        value = limit * (2.0 * sigmoid(2.0 * value / limit) - 1.0)
    elif KIND == "clamp":
        value = tl.minimum(tl.maximum(value, -limit), limit)
    else:
        value = value * limit
    tl.store(out + row * out_stride + column, value, mask=live)
