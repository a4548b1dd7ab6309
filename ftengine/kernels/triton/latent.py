"""Latent attention: rows of pages that all heads read, in decoding, in chunks, and of chosen keys.

A kept row is a latent of RANK numbers, which are key and value, and ROPE numbers of a rotated key.
Keys are cut at absolute multiples of 256 and summed as attention.py does it; a chunk takes the
tokens one by one, so a token's sums are those of decoding. Reference: latent.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.product import product
from ftengine.kernels.triton.turned import load_turned

PAGE_TOKENS = tl.constexpr(16)
SPLIT = tl.constexpr(256)
STEP = tl.constexpr(32)
MANY = tl.constexpr(32)
"""Sequences looked through at a time."""
NOTHING = tl.constexpr(-1e30)
"""Score of a hidden key: finite, so that rows without keys make no NaN."""


@triton.jit
def sequence_of(query_start: tl.tensor, token: tl.tensor, num_sequences: tl.tensor) -> tl.tensor:
    """The sequence that a token of the step belongs to."""
    found = tl.full([], 0, tl.int32)
    for first in range(0, num_sequences, MANY):
        number = first + tl.arange(0, MANY)
        there = number < num_sequences
        end = tl.load(query_start + 1 + number, mask=there, other=0)
        found += tl.sum((there & (end <= token)).to(tl.int32), 0)
    return found


@triton.jit
def latent_store(
    latent: tl.tensor,
    key: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    pool: tl.tensor,
    row_stride: tl.tensor,
    eps: tl.tensor,
    num_tokens: tl.tensor,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    HALF: tl.constexpr,
    DIM: tl.constexpr,
    TURN: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> None:
    """One token: the latent normalised, the key rotated, in the row that slots names (-1: none).

    Shape: latent, key float32 [tokens, row_stride]; pool [slots, RANK + ROPE]. Grid: tokens.
    """
    token = tl.program_id(0)
    slot = tl.load(slots + token)
    if slot >= 0:
        start = token.to(tl.int64) * row_stride
        place = pool + slot * (RANK + ROPE)
        at = tl.arange(0, DIM)
        live = at < RANK
        value = tl.load(latent + start + at, mask=live, other=0.0)
        value *= 1.0 / tl.sqrt_rn(tl.sum(value * value, 0) / RANK + eps)
        value *= tl.load(weight + at, mask=live, other=0.0)
        tl.store(place + at, value.to(pool.dtype.element_ty), mask=live)
        position = tl.load(positions + token).to(tl.int64)
        turn = tl.arange(0, TURN)
        there = turn < ROPE
        cos += position * HALF
        sin += position * HALF
        turned = load_turned(key + start, turn, there, cos, sin, HALF, INTERLEAVED)
        tl.store(place + RANK + turn, turned.to(pool.dtype.element_ty), mask=there)


@triton.jit
def head_product(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    x_head_stride: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    heads: tl.tensor,
    num_tokens: tl.tensor,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """A matrix for every head: out[t, h] = x[t, h] weight[h]. Strides in numbers.

    Shape: x [tokens, heads, IN]; weight [heads, IN, OUT]; out [tokens, heads, OUT]. Grid: blocks of
    OUT, heads, tiles of tokens.
    """
    head = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.program_id(2) * TOKENS + tl.arange(0, TOKENS)
    there, asked = token < num_tokens, column < OUT
    row = token.to(tl.int64)[:, None]
    acc = tl.zeros([TOKENS, BLOCK], tl.float32)
    for start in range(0, IN, WIDE):
        at = start + tl.arange(0, WIDE)
        live = at < IN
        left = tl.load(
            x + row * x_stride + head * x_head_stride + at[None, :],
            mask=there[:, None] & live[None, :],
            other=0.0,
        )
        right = tl.load(
            weight + (head * IN + at[:, None]) * OUT + column[None, :],
            mask=live[:, None] & asked[None, :],
            other=0.0,
        )
        acc = product(left, right, acc, DOT)
    place = out + row * out_stride + head * out_head_stride + column[None, :]
    tl.store(place, acc, mask=there[:, None] & asked[None, :])


@triton.jit
def fold_keys(
    latent: tl.tensor,
    turned: tl.tensor,
    largest: tl.tensor,
    total: tl.tensor,
    acc: tl.tensor,
    start: tl.tensor,
    length: tl.tensor,
    pool: tl.tensor,
    places: tl.tensor,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    CHOSEN: tl.constexpr,
    DOT: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Fold STEP keys from `start` on into the sums of one cut; all of them are visible."""
    token = start + tl.arange(0, STEP)
    there = token < length
    if CHOSEN:
        slot = tl.load(places + token, mask=there, other=0).to(tl.int64)
    else:
        page = tl.load(places + token // PAGE_TOKENS, mask=there, other=0).to(tl.int64)
        slot = page * PAGE_TOKENS + token % PAGE_TOKENS
    row = pool + (slot * (RANK + ROPE))[:, None]
    dim = tl.arange(0, latent.shape[1])[None, :]
    turn = tl.arange(0, turned.shape[1])[None, :]
    value = tl.load(row + dim, mask=there[:, None] & (dim < RANK), other=0.0)
    key = tl.load(row + RANK + turn, mask=there[:, None] & (turn < ROPE), other=0.0)
    scores = tl.zeros([latent.shape[0], STEP], tl.float32)
    scores = product(latent, tl.trans(value), scores, DOT)
    scores = product(turned, tl.trans(key), scores, DOT)
    scores = tl.where(there[None, :], scores, NOTHING)
    top = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.where(there[None, :], tl.exp(scores - top[:, None]), 0.0)
    fade = tl.exp(largest - top)
    acc = product(weights, value, acc * fade[:, None], DOT)
    return top, total * fade + tl.sum(weights, 1), acc


@triton.jit
def sum_split(
    latent: tl.tensor,
    turned: tl.tensor,
    split: tl.tensor,
    length: tl.tensor,
    pool: tl.tensor,
    places: tl.tensor,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    CHOSEN: tl.constexpr,
    DOT: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Largest score, sum of weights and weighted latents of one cut."""
    largest = tl.full([latent.shape[0]], NOTHING, tl.float32)
    total = tl.zeros([latent.shape[0]], tl.float32)
    acc = tl.zeros([latent.shape[0], latent.shape[1]], tl.float32)
    for start in range(split * SPLIT, tl.minimum((split + 1) * SPLIT, length), STEP):
        largest, total, acc = fold_keys(
            latent,
            turned,
            largest,
            total,
            acc,
            start,
            length,
            pool,
            places,
            RANK,
            ROPE,
            CHOSEN,
            DOT,
        )
    return largest, total, acc


@triton.jit
def load_latent_queries(
    absorbed: tl.tensor,
    q: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    temper: tl.tensor,
    token: tl.tensor,
    position: tl.tensor,
    head: tl.tensor,
    live: tl.tensor,
    heads: tl.tensor,
    head_dim: tl.tensor,
    q_stride: tl.tensor,
    scale: tl.tensor,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    HALF: tl.constexpr,
    DIM: tl.constexpr,
    TURN: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TEMPER: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Queries of one token times the scale, against latents and against rotated keys.

    Shape: head, live [rows]; absorbed [tokens, heads, RANK]; q [tokens, q_stride], each head's last
    ROPE numbers are read.
    """
    if TEMPER:
        scale *= tl.load(temper + position)
    dim, turn = tl.arange(0, DIM)[None, :], tl.arange(0, TURN)[None, :]
    at = (token * heads + head).to(tl.int64)[:, None] * RANK + dim
    latent = tl.load(absorbed + at, mask=live[:, None] & (dim < RANK), other=0.0)
    rows = q + (token.to(tl.int64) * q_stride + (head + 1) * head_dim - ROPE)[:, None]
    there = live[:, None] & (turn < ROPE)
    first = position.to(tl.int64) * HALF
    turned = load_turned(rows, turn, there, cos + first, sin + first, HALF, INTERLEAVED)
    return latent * scale, turned * scale


@triton.jit
def latent_split(
    absorbed: tl.tensor,
    q: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    temper: tl.tensor,
    positions: tl.tensor,
    pool: tl.tensor,
    places: tl.tensor,
    lengths: tl.tensor,
    part_sums: tl.tensor,
    parts: tl.tensor,
    q_stride: tl.tensor,
    place_stride: tl.tensor,
    heads: tl.tensor,
    head_dim: tl.tensor,
    scale: tl.tensor,
    num_splits: tl.tensor,
    num_tokens: tl.tensor,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    HALF: tl.constexpr,
    DIM: tl.constexpr,
    TURN: tl.constexpr,
    ROWS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TEMPER: tl.constexpr,
    CHOSEN: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """Decoding: one cut of one sequence for ROWS heads; attention_merge of RANK numbers follows.

    Shape: places [tokens, place_stride]: pages, or with CHOSEN the slots of keys; lengths [tokens],
    keys seen; part_sums [tokens, heads, splits, 2]; parts [tokens, heads, splits, RANK]. Grid:
    splits, tokens, blocks of heads.
    """
    split, token = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths + token)
    if split * SPLIT >= length:
        return
    head = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    live = head < heads
    position = tl.load(positions + token)
    latent, turned = load_latent_queries(
        absorbed,
        q,
        cos,
        sin,
        temper,
        token,
        position,
        head,
        live,
        heads,
        head_dim,
        q_stride,
        scale,
        RANK,
        ROPE,
        HALF,
        DIM,
        TURN,
        INTERLEAVED,
        TEMPER,
    )
    mine = places + token.to(tl.int64) * place_stride
    largest, total, acc = sum_split(
        latent, turned, split, length, pool, mine, RANK, ROPE, CHOSEN, DOT
    )
    at = (token * heads + head) * num_splits + split
    tl.store(part_sums + 2 * at, largest, mask=live)
    tl.store(part_sums + 2 * at + 1, total, mask=live)
    dim = tl.arange(0, DIM)[None, :]
    place = at.to(tl.int64)[:, None] * RANK + dim
    tl.store(parts + place, acc, mask=live[:, None] & (dim < RANK))


@triton.jit
def latent_chunk(
    absorbed: tl.tensor,
    q: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    temper: tl.tensor,
    positions: tl.tensor,
    pool: tl.tensor,
    places: tl.tensor,
    lengths: tl.tensor,
    query_start: tl.tensor,
    out: tl.tensor,
    q_stride: tl.tensor,
    place_stride: tl.tensor,
    heads: tl.tensor,
    head_dim: tl.tensor,
    scale: tl.tensor,
    first: tl.tensor,
    num_sequences: tl.tensor,
    num_tokens: tl.tensor,
    RANK: tl.constexpr,
    ROPE: tl.constexpr,
    HALF: tl.constexpr,
    DIM: tl.constexpr,
    TURN: tl.constexpr,
    ROWS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    TEMPER: tl.constexpr,
    CHOSEN: tl.constexpr,
    DOT: tl.constexpr,
) -> None:
    """Chunks: one token for ROWS heads, over all keys it sees.

    Shape: of the tokens from number `first` of the step on: absorbed, q, positions, out [tokens,
    heads, RANK] and, with CHOSEN, places and lengths; of the sequences: places without it,
    query_start [sequences + 1]. Grid: tokens, blocks of heads.
    """
    token = tl.program_id(0)
    head = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    live = head < heads
    position = tl.load(positions + token)
    if CHOSEN:
        length = tl.load(lengths + token)
        owner = token
    else:
        length = position + 1
        owner = sequence_of(query_start, first + token, num_sequences)
    latent, turned = load_latent_queries(
        absorbed,
        q,
        cos,
        sin,
        temper,
        token,
        position,
        head,
        live,
        heads,
        head_dim,
        q_stride,
        scale,
        RANK,
        ROPE,
        HALF,
        DIM,
        TURN,
        INTERLEAVED,
        TEMPER,
    )
    mine = places + owner.to(tl.int64) * place_stride
    top = tl.full([ROWS], NOTHING, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for split in range(0, tl.cdiv(length, SPLIT)):
        largest, part_total, part = sum_split(
            latent, turned, split, length, pool, mine, RANK, ROPE, CHOSEN, DOT
        )
        new = tl.maximum(top, largest)
        fade, weight = tl.exp(top - new), tl.exp(largest - new)
        total = total * fade + part_total * weight
        acc = acc * fade[:, None] + part * weight[:, None]
        top = new
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    dim = tl.arange(0, DIM)[None, :]
    at = (token * heads + head).to(tl.int64)[:, None] * RANK + dim
    tl.store(out + at, result, mask=live[:, None] & (dim < RANK))
