"""Panels times many rows: experts of a prompt, grouped, and dense layers (one group).

Activations are first put in the order in which words hold their columns (arrange), so that tiles
are read in wide loads and no nibble is moved. A list of tiles says which rows of which expert
a program computes. Weights are widened times their scale, then rounded as the build's product is.
Few tokens: expert_ffn.py and linear.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.expert_ffn import activate, bias_at
from ftengine.kernels.triton.panel import (
    data_words,
    factors,
    group_places,
    header_bytes,
    in_halves,
    lead_words,
    panel_bytes,
    row_scaled,
    word_elements,
    word_value,
)
from ftengine.kernels.triton.product import product


@triton.jit
def arranged(column: tl.tensor, cols: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Where a column goes: all first elements of words, then all second ones, and so on."""
    if FORMAT == "q4_k":
        place = 2 * (column % 4) + column % 64 // 32
        word = column // 64 * 8 + column % 32 // 4
    elif in_halves(FORMAT):
        place = 2 * (column % 4) + column % 32 // 16
        word = column // 32 * 4 + column % 16 // 4
    else:
        place = column % word_elements(FORMAT)
        word = column // word_elements(FORMAT)
    return place * (cols // word_elements(FORMAT)) + word


@triton.jit
def arrange(
    x: tl.tensor,
    out: tl.tensor,
    cols: tl.tensor,
    num_rows: tl.tensor,
    FORMAT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Rows in the order of a format's words. Shape: x, out [rows, cols]. Grid: rows, blocks."""
    row = tl.program_id(0).to(tl.int64) * cols
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row + column, mask=column < cols, other=0.0)
    at = out + row + arranged(column, cols, FORMAT)
    tl.store(at, value.to(out.dtype.element_ty), mask=column < cols)


@triton.jit
def tile_product(
    x: tl.tensor,
    x_rows: tl.tensor,
    live_rows: tl.tensor,
    matrix: tl.tensor,
    first_panel: tl.tensor,
    num_panels: tl.tensor,
    cols: tl.tensor,
    FORMAT: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    PANELS: tl.constexpr,
    WORDS: tl.constexpr,
) -> tl.tensor:
    """Arranged rows times PANELS panels. Shape: -> float32 [ROWS, 32 * PANELS]."""
    column = tl.arange(0, 32 * PANELS)
    row = column % 32
    index = first_panel + column // 32
    there = index < num_panels
    size = panel_bytes(cols, FORMAT).to(tl.int64)
    panel = matrix + tl.where(there, index, 0) * size
    body = panel + header_bytes(cols, FORMAT)
    words_each = cols // word_elements(FORMAT)
    acc = tl.zeros([ROWS, 32 * PANELS], tl.float32)
    for start in range(0, words_each, WORDS):
        word = start + tl.arange(0, WORDS)
        group, turn = word // data_words(FORMAT), word % data_words(FORMAT)
        live_word = word < words_each
        every = live_word[:, None] & there[None, :]
        _, word_at = group_places(group[:, None], row[None, :], FORMAT)
        words = body.to(tl.pointer_type(tl.int32))[None, :] + word_at
        bits = tl.load(words + 32 * (turn[:, None] + lead_words(FORMAT)), mask=every, other=0)
        where = (panel[None, :], body[None, :], group[:, None], turn[:, None], row[None, :], every)
        factor, offset = factors(*where, 0, FORMAT)
        at = x + x_rows[:, None] * cols + word[None, :]
        live = live_rows[:, None] & live_word[None, :]
        if word_elements(FORMAT) <= 2:
            for place in tl.static_range(word_elements(FORMAT)):
                left = tl.load(at + place * words_each, mask=live, other=0.0)
                acc = product(left, word_value(bits, place, FORMAT), acc, DOT)
        elif FORMAT == "q4_k":
            other_factor, other_offset = factors(*where, 1, FORMAT)
            for half in range(word_elements(FORMAT) // 2):
                left = tl.load(at + 2 * half * words_each, mask=live, other=0.0)
                right = word_value(bits, 2 * half, FORMAT) * factor + offset
                acc = product(left, right, acc, DOT)
                left = tl.load(at + (2 * half + 1) * words_each, mask=live, other=0.0)
                right = word_value(bits, 2 * half + 1, FORMAT) * other_factor + other_offset
                acc = product(left, right, acc, DOT)
        else:
            # a real loop: eight copies of the decoding would not fit the registers
            for place in range(word_elements(FORMAT)):
                left = tl.load(at + place * words_each, mask=live, other=0.0)
                right = word_value(bits, place, FORMAT) * factor + offset
                acc = product(left, right, acc, DOT)
    return row_scaled_tile(acc, panel, row, FORMAT)


@triton.jit
def row_scaled_tile(
    acc: tl.tensor, panel: tl.tensor, row: tl.tensor, FORMAT: tl.constexpr
) -> tl.tensor:
    """Sums times the factors of their rows. Shape: acc [rows, columns]."""
    ones = tl.full(row.shape, 1.0, tl.float32)
    return acc * row_scaled(ones, panel, row, FORMAT)[None, :]


@triton.jit
def gate_up_gemm(
    x: tl.tensor,
    tiles: tl.tensor,
    pairs: tl.tensor,
    bank: tl.tensor,
    inner: tl.tensor,
    num_places: tl.tensor,
    hidden: tl.tensor,
    inter: tl.tensor,
    row_bytes: tl.tensor,
    offset: tl.tensor,
    bias_offset: tl.tensor,
    alpha: tl.tensor,
    limit: tl.tensor,
    num_tiles: tl.tensor,
    FORMAT: tl.constexpr,
    FORMAT_DOWN: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    PANELS: tl.constexpr,
    WORDS: tl.constexpr,
) -> None:
    """inner = act(gate x) * (up x) for rows of one expert, arranged for the down matrix; act(up x)
    where experts are not GATED.

    Shape: x [tokens, hidden], arranged; pairs int32, pair numbers sorted by expert; tiles int32 [n,
    3]: bank row, first and number of pairs, 0 = nothing; inner [pairs, inter], row i of pairs[i].
    Grid: blocks of PANELS panels, tiles.
    """
    tile = tiles + 3 * tl.program_id(1)
    count = tl.load(tile + 2)
    if count == 0:
        return
    expert = bank + tl.load(tile).to(tl.int64) * row_bytes
    index = tl.load(tile + 1) + tl.arange(0, ROWS)
    live = tl.arange(0, ROWS) < count
    pair = tl.load(pairs + index, mask=live, other=0)
    first = tl.program_id(0) * PANELS
    total = tile_product(
        x,
        (pair // num_places).to(tl.int64),
        live,
        expert + offset,
        first,
        tl.cdiv(inter, 16 if GATED else 32),
        hidden,
        FORMAT,
        DOT,
        ROWS,
        PANELS,
        WORDS,
    )
    if GATED:
        both = tl.permute(tl.reshape(total, (ROWS, PANELS, 2, 16)), (0, 1, 3, 2))
        gate, up = tl.split(both)
        gate, up = tl.reshape(gate, (ROWS, PANELS * 16)), tl.reshape(up, (ROWS, PANELS * 16))
        column = first * 16 + tl.arange(0, PANELS * 16)
        there = column < inter
        gate += bias_at(expert + bias_offset, column, there, BIAS)[None, :]
        up += bias_at(expert + bias_offset, column + inter, there, BIAS)[None, :]
        value = activate(gate, up, alpha, limit, ACTIVATION)
    else:
        column = first * 32 + tl.arange(0, PANELS * 32)
        there = column < inter
        ones = tl.full([ROWS, PANELS * 32], 1.0, tl.float32)
        value = activate(total, ones, alpha, limit, ACTIVATION)
    at = index.to(tl.int64)[:, None] * inter + arranged(column, inter, FORMAT_DOWN)[None, :]
    tl.store(inner + at, value.to(inner.dtype.element_ty), mask=live[:, None] & there[None, :])


@triton.jit
def down_gemm(
    x: tl.tensor,
    tiles: tl.tensor,
    pairs: tl.tensor,
    bank: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    cols: tl.tensor,
    row_bytes: tl.tensor,
    offset: tl.tensor,
    bias_offset: tl.tensor,
    num_tiles: tl.tensor,
    FORMAT: tl.constexpr,
    BIAS: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    PANELS: tl.constexpr,
    WORDS: tl.constexpr,
) -> None:
    """out = matrix x for rows of one expert (or of a dense layer).

    Shape: x [pairs, cols], arranged, row i of pairs[i]; out [pairs, rows], row pairs[i]; tiles as
    in gate_up_gemm. Grid: blocks of PANELS panels, tiles.
    """
    tile = tiles + 3 * tl.program_id(1)
    count = tl.load(tile + 2)
    if count == 0:
        return
    expert = bank + tl.load(tile).to(tl.int64) * row_bytes
    index = tl.load(tile + 1) + tl.arange(0, ROWS)
    live = tl.arange(0, ROWS) < count
    first = tl.program_id(0) * PANELS
    total = tile_product(
        x,
        index.to(tl.int64),
        live,
        expert + offset,
        first,
        tl.cdiv(rows, 32),
        cols,
        FORMAT,
        DOT,
        ROWS,
        PANELS,
        WORDS,
    )
    column = first * 32 + tl.arange(0, PANELS * 32)
    total += bias_at(expert + bias_offset, column, column < rows, BIAS)[None, :]
    pair = tl.load(pairs + index, mask=live, other=0).to(tl.int64)
    at = pair[:, None] * rows + column[None, :]
    tl.store(out + at, total, mask=live[:, None] & (column < rows)[None, :])
