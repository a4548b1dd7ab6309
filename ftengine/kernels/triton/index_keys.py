"""The indexer of sparse attention: its keys stored, all keys scored, the best top_k chosen.

Choosing needs no order: the k-th largest score is found digit by digit (a radix select over the
bits of the float), then what lies above it is written in the order of the keys; of equal scores the
earlier keys are taken. Reference: latent.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.latent import sequence_of
from ftengine.kernels.triton.product import product
from ftengine.kernels.triton.turned import load_turned, partner_of, turn_pair

PAGE_TOKENS = tl.constexpr(16)
DIGITS = tl.constexpr(256)


@triton.jit
def normed_at(
    row: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    mean: tl.tensor,
    scale: tl.tensor,
    at: tl.tensor,
    live: tl.tensor,
) -> tl.tensor:
    """Numbers of a row after its norm."""
    value = (tl.load(row + at, mask=live, other=0.0) - mean) * scale
    factor = tl.load(weight + at, mask=live, other=0.0)
    return value * factor + tl.load(bias + at, mask=live, other=0.0)


@triton.jit
def index_store(
    key: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    pool: tl.tensor,
    row_stride: tl.tensor,
    eps: tl.tensor,
    num_tokens: tl.tensor,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> None:
    """One token's key: mean and deviation taken off, the first 2 HALF numbers rotated, stored.

    Shape: key float32 [tokens, row_stride]; pool [slots, SIZE]. Grid: tokens.
    """
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    if slot >= 0:
        row = key + token.to(tl.int64) * row_stride
        at = tl.arange(0, DIM)
        live = at < SIZE
        value = tl.load(row + at, mask=live, other=0.0)
        mean = tl.sum(value, 0) / SIZE
        apart = tl.where(live, value - mean, 0.0)
        scale = 1.0 / tl.sqrt_rn(tl.sum(apart * apart, 0) / SIZE + eps)
        partner, pair, sign = partner_of(at, HALF, INTERLEAVED)
        turns = live & (at < 2 * HALF)
        own = normed_at(row, weight, bias, mean, scale, at, live)
        other = normed_at(row, weight, bias, mean, scale, partner, turns)
        first = tl.load(positions + token).to(tl.int64) * HALF
        turned = turn_pair(own, other, cos + first, sin + first, pair, sign, turns)
        tl.store(pool + slot * SIZE + at, turned.to(pool.dtype.element_ty), mask=live)


@triton.jit
def index_scores(
    q: tl.tensor,
    factors: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    pool: tl.tensor,
    query_start: tl.tensor,
    page_table: tl.tensor,
    scores: tl.tensor,
    q_stride: tl.tensor,
    factor_stride: tl.tensor,
    table_stride: tl.tensor,
    heads: tl.tensor,
    scale: tl.tensor,
    most_keys: tl.tensor,
    first: tl.tensor,
    num_sequences: tl.tensor,
    num_tokens: tl.tensor,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """scores[t, s] = scale * sum over heads of factor relu(q . k_s), of KEYS keys for one token.

    Shape: of the tokens from number `first` of the step on: q [tokens, q_stride], heads side by
    side, factors [tokens, factor_stride], positions, scores [tokens, most_keys], of which those up
    to the position are written. Grid: blocks of keys, tokens.
    """
    token, start = tl.program_id(1), tl.program_id(0) * KEYS
    position = tl.load(positions + token)
    if start > position:
        return
    owner = sequence_of(query_start, first + token, num_sequences).to(tl.int64)
    key_at = start + tl.arange(0, KEYS)
    there = key_at <= position
    pages = page_table + owner * table_stride
    page = tl.load(pages + key_at // PAGE_TOKENS, mask=there, other=0).to(tl.int64)
    slot = page * PAGE_TOKENS + key_at % PAGE_TOKENS
    head, dim = tl.arange(0, HEADS), tl.arange(0, DIM)[None, :]
    live = head < heads
    key = tl.load(
        pool + (slot * SIZE)[:, None] + dim, mask=there[:, None] & (dim < SIZE), other=0.0
    )
    rows = q + (token.to(tl.int64) * q_stride + head * SIZE)[:, None]
    turn_at = position.to(tl.int64) * HALF
    asked = live[:, None] & (dim < SIZE)
    query = load_turned(rows, dim, asked, cos + turn_at, sin + turn_at, HALF, INTERLEAVED)
    dots = product(query, tl.trans(key), tl.zeros([HEADS, KEYS], tl.float32), DOT)
    factor = tl.load(factors + token.to(tl.int64) * factor_stride + head, mask=live, other=0.0)
    found = tl.sum(tl.maximum(dots, 0.0) * (factor * scale)[:, None], 0)
    tl.store(scores + token.to(tl.int64) * most_keys + key_at, found, mask=there)


@triton.jit
def rising(value: tl.tensor) -> tl.tensor:
    """int64 in 0 .. 2^32 - 1 that rises with the float; not a number is the largest."""
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(value == 0.0, 0, bits)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ordered = tl.where(value != value, 0x7FFFFFFF, ordered)
    return ordered.to(tl.int64) + 0x80000000


@triton.jit
def digit_of_kth(
    row: tl.tensor,
    length: tl.tensor,
    prefix: tl.tensor,
    wanted: tl.tensor,
    shift: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Among scores whose upper bits are `prefix`: the next digit of the one with rank `wanted`.

    Returns the longer prefix, and the rank among those that have it.
    """
    counts = tl.zeros([DIGITS], tl.int32)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < length
        key = rising(tl.load(row + at, mask=live, other=0.0))
        live = live & ((key >> (shift + 8)) == prefix)
        counts += tl.histogram(((key >> shift) & 255).to(tl.int32), DIGITS, mask=live)
    digit = tl.arange(0, DIGITS)
    above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
    fits = (above < wanted) & (above + counts >= wanted)
    found = tl.max(tl.where(fits, digit, 0), 0)
    return prefix * 256 + found, wanted - tl.sum(tl.where(digit == found, above, 0), 0)


@triton.jit
def index_choose(
    scores: tl.tensor,
    positions: tl.tensor,
    query_start: tl.tensor,
    page_table: tl.tensor,
    chosen: tl.tensor,
    counts: tl.tensor,
    table_stride: tl.tensor,
    most_keys: tl.tensor,
    top_k: tl.tensor,
    first: tl.tensor,
    num_sequences: tl.tensor,
    num_tokens: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Slots of the top_k best keys of one token in order of the keys, all where fewer are there.

    Shape: of the tokens from number `first` of the step on: scores [tokens, most_keys], positions,
    chosen int32 [tokens, top_k], counts int32 [tokens]. Grid: tokens.
    """
    token = tl.program_id(0)
    length = tl.load(positions + token) + 1
    row = scores + token.to(tl.int64) * most_keys
    prefix = tl.full([], -1, tl.int64)
    wanted = tl.full([], 0, tl.int32)
    if length > top_k:
        prefix = tl.full([], 0, tl.int64)
        wanted += top_k
        for turn in range(0, 4):
            prefix, wanted = digit_of_kth(row, length, prefix, wanted, 24 - 8 * turn, BLOCK)
    owner = sequence_of(query_start, first + token, num_sequences).to(tl.int64)
    pages = page_table + owner * table_stride
    out = chosen + token.to(tl.int64) * top_k
    taken = tl.full([], 0, tl.int32)
    equal = tl.full([], 0, tl.int32)
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < length
        key = rising(tl.load(row + at, mask=live, other=0.0))
        same = (live & (key == prefix)).to(tl.int32)
        early = (same > 0) & (equal + tl.cumsum(same, 0) <= wanted)
        take = ((live & (key > prefix)) | early).to(tl.int32)
        page = tl.load(pages + at // PAGE_TOKENS, mask=live, other=0)
        place = taken + tl.cumsum(take, 0) - 1
        tl.store(out + place, page * PAGE_TOKENS + at % PAGE_TOKENS, mask=take > 0)
        taken += tl.sum(take, 0)
        equal += tl.sum(same, 0)
    tl.store(counts + token, taken)
