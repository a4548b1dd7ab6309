"""The gated delta rule over long runs of tokens: whole chunks at a time, as matrix products.

Chunks end at absolute multiples of CHUNK tokens, so a cut at such a multiple changes no bit; a cut
elsewhere changes the order of sums. Step by step: recurrent.py.
Source: Yang et al., Gated Delta Networks, 2024, and Parallelizing Linear Transformers with the
Delta Rule, 2024.
"""

from __future__ import annotations

import triton
import triton.language as tl

SMALLEST = tl.constexpr(1e-30)


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
def delta_chunk(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    decay: tl.tensor,
    beta: tl.tensor,
    states: tl.tensor,
    out: tl.tensor,
    query_start: tl.tensor,
    context_len: tl.tensor,
    slots: tl.tensor,
    slot_stride: tl.tensor,
    key_heads: tl.tensor,
    heads: tl.tensor,
    key_dim: tl.tensor,
    value_dim: tl.tensor,
    num_sequences: tl.tensor,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """As recurrent.py's delta_rule, whole chunks at a time.

    Shape: as there; context_len int32 [sequences]: tokens of each sequence, new ones included.
    Grid: blocks of value_dim, heads, sequences.
    """
    head, sequence = tl.program_id(1), tl.program_id(2)
    row = tl.arange(0, KEYS)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = (row < key_dim)[:, None] & (column < value_dim)[None, :]
    at = (head * key_dim + row[:, None]) * value_dim + column[None, :]
    place = states + tl.load(slots + sequence) * slot_stride + at
    state = tl.load(place, mask=live, other=0.0)
    key_head = head // (heads // key_heads)
    begin, end = tl.load(query_start + sequence), tl.load(query_start + sequence + 1)
    # chunks are counted from the sequence's first token: the first one here may be short
    base = begin - (tl.load(context_len + sequence) - (end - begin)) % CHUNK
    index = tl.arange(0, CHUNK)
    earlier = index[:, None] > index[None, :]
    for start in range(base, end, CHUNK):
        token = start + index
        there = (token >= begin) & (token < end)
        keys_at = ((token * key_heads + key_head) * key_dim)[:, None] + row[None, :]
        some = there[:, None] & (row < key_dim)[None, :]
        key = tl.load(k + keys_at, mask=some, other=0.0)
        query = tl.load(q + keys_at, mask=some, other=0.0)
        values_at = ((token * heads + head) * value_dim)[:, None] + column[None, :]
        wanted = there[:, None] & (column < value_dim)[None, :]
        value = tl.load(v + values_at, mask=wanted, other=0.0)
        gate = tl.load(decay + token * heads + head, mask=there, other=1.0)
        strength = tl.load(beta + token * heads + head, mask=there, other=0.0)
        logs = tl.cumsum(tl.log(tl.maximum(gate, SMALLEST)), 0)
        # of two tokens what the later one still sees of the earlier one
        kept = tl.exp(tl.minimum(logs[:, None] - logs[None, :], 0.0))
        so_far = tl.exp(logs)[:, None]
        turned = tl.trans(key)
        lower = tl.where(earlier, matmul(key, turned) * kept, 0.0) * strength[:, None]
        right = (value - so_far * matmul(key, state)) * strength[:, None]
        change = solve(lower, right, CHUNK)
        seen = tl.where(index[:, None] >= index[None, :], matmul(query, turned) * kept, 0.0)
        result = so_far * matmul(query, state) + matmul(seen, change)
        tl.store(out + values_at, result, mask=wanted)
        last = tl.sum(tl.where(index == CHUNK - 1, logs, 0.0), 0)
        fade = tl.exp(last - logs)
        state = state * tl.exp(last) + matmul(turned * fade[None, :], change)
    tl.store(place, state, mask=live)
