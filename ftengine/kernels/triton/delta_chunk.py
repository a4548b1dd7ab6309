"""The gated delta rule over long runs of tokens: whole chunks at a time, as matrix products.

Chunks end at absolute multiples of CHUNK tokens, so a cut at such a multiple changes no bit; a cut
elsewhere changes the order of sums. Step by step: delta.py.
Source: Yang et al., Gated Delta Networks, 2024, and Parallelizing Linear Transformers with the
Delta Rule, 2024.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.delta import log_decay, strength, unit
from ftengine.kernels.triton.recurrent import goes_on, is_first

LEAST = tl.constexpr(-69.0)
"""Logarithm of a decay that leaves nothing; larger ones would cost the others their digits."""


@triton.jit
def matmul(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """a b in float32."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def solve(lower: tl.tensor, right: tl.tensor, CHUNK: tl.constexpr) -> tl.tensor:
    """X of (I + lower) X = right, lower being strictly lower triangular."""
    index = tl.arange(0, CHUNK)
    for step in range(1, CHUNK):
        mine = index == step
        factors = tl.sum(tl.where(mine[:, None], lower, 0.0), 0)
        change = tl.sum(factors[:, None] * right, 0)
        right = tl.where(mine[:, None], right - change[None, :], right)
    return right


@triton.jit
def chunk(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    logs: tl.tensor,
    taken: tl.tensor,
    state: tl.tensor,
    CHUNK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """(results of a chunk's tokens, the state after them).

    Shape: query, key [CHUNK, keys]; value, results [CHUNK, values]; logs [CHUNK]: logarithms of
    what each token leaves of the state before the chunk; taken [CHUNK]: beta; state [keys, values].
    """
    index = tl.arange(0, CHUNK)
    # of two tokens what the later one still sees of the earlier one
    kept = tl.exp(tl.minimum(logs[:, None] - logs[None, :], 0.0))
    so_far = tl.exp(logs)[:, None]
    turned = tl.trans(key)
    earlier = index[:, None] > index[None, :]
    lower = tl.where(earlier, matmul(key, turned) * kept, 0.0) * taken[:, None]
    right = (value - so_far * matmul(key, state)) * taken[:, None]
    change = solve(lower, right, CHUNK)
    near = index[:, None] >= index[None, :]
    seen = tl.where(near, matmul(query, turned) * kept, 0.0)
    result = so_far * matmul(query, state) + matmul(seen, change)
    last = tl.sum(tl.where(index == CHUNK - 1, logs, 0.0), 0)
    fade = tl.exp(last - logs)
    return result, state * tl.exp(last) + matmul(turned * fade[None, :], change)


@triton.jit
def delta_chunk(
    mixed: tl.tensor,
    gates: tl.tensor,
    decay_rate: tl.tensor,
    dt_bias: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    states: tl.tensor,
    out: tl.tensor,
    starts: tl.tensor,
    slots: tl.tensor,
    keeps: tl.tensor,
    positions: tl.tensor,
    slot_stride: tl.tensor,
    gates_stride: tl.tensor,
    key_heads: tl.tensor,
    heads: tl.tensor,
    key_dim: tl.tensor,
    value_dim: tl.tensor,
    eps: tl.tensor,
    num_spans: tl.tensor,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """As delta.py's delta_rule, whole chunks at a time.

    Shape: as there; positions int32 [spans]: where in its sequence a span's first token stands.
    Grid: blocks of value_dim, heads, spans.
    """
    head, span = tl.program_id(1), tl.program_id(2)
    row = tl.arange(0, KEYS)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within, lives = row < key_dim, column < value_dim
    live = within[:, None] & lives[None, :]
    at = (head * key_dim + row[:, None]) * value_dim + column[None, :]
    width = key_heads * key_dim
    keys_at = head // (heads // key_heads) * key_dim + row
    values_at = head * value_dim + column
    index = tl.arange(0, CHUNK)
    if is_first(slots, span):
        slot = tl.load(slots + span)
        place = states + slot * slot_stride + at
        state = tl.load(place, mask=live, other=0.0)
        rate, bias = tl.load(decay_rate + head), tl.load(dt_bias + head)
        for_q = tl.load(q_weight + row, mask=within, other=0.0)
        for_k = tl.load(k_weight + row, mask=within, other=0.0)
        going = span < num_spans
        while going:
            begin, end = tl.load(starts + span), tl.load(starts + span + 1)
            # chunks are counted from the sequence's first token: the first one here may be short
            base = begin - tl.load(positions + span) % CHUNK
            for start in range(base, end, CHUNK):
                token = start + index
                there = (token >= begin) & (token < end)
                source = mixed + token.to(tl.int64)[:, None] * (2 * width + heads * value_dim)
                some = there[:, None] & within[None, :]
                query = tl.load(source + keys_at[None, :], mask=some, other=0.0)
                query = unit(query, for_q, key_dim, eps, 1)
                key = tl.load(source + width + keys_at[None, :], mask=some, other=0.0)
                key = unit(key, for_k, key_dim, eps, 1)
                wanted = there[:, None] & lives[None, :]
                value = tl.load(source + 2 * width + values_at[None, :], mask=wanted, other=0.0)
                gate = gates + token.to(tl.int64) * gates_stride + head
                fades = log_decay(tl.load(gate + heads, mask=there, other=0.0), rate, bias)
                fades = tl.maximum(fades.to(tl.float32), LEAST)
                logs = tl.cumsum(tl.where(there, fades, 0.0), 0)
                taken = strength(tl.load(gate, mask=there, other=0.0))
                taken = tl.where(there, taken, 0.0)
                result, state = chunk(query, key, value, logs, taken, state, CHUNK)
                target = out + token.to(tl.int64)[:, None] * (heads * value_dim)
                tl.store(target + values_at[None, :], result, mask=wanted)
            keep = tl.load(keeps + span)
            tl.store(states + keep * slot_stride + at, state, mask=live & (keep >= 0))
            span += 1
            going = goes_on(slots, span, slot, num_spans)
        tl.store(place, state, mask=live)
