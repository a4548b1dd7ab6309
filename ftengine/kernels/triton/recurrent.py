"""Layers with state, token after token, for several sequences: the step of decoding.

A program keeps its part of the state in registers from its sequence's first new token to its last,
so a cut between two calls changes no bit. Long chunks: delta_chunk.py. Reference: recurrent.py.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def seen_at(
    x: tl.tensor,
    state: tl.tensor,
    index: tl.tensor,
    channel: tl.tensor,
    live: tl.tensor,
    x_stride: tl.tensor,
    channels: tl.tensor,
    TAPS: tl.constexpr,
) -> tl.tensor:
    """Inputs by index, the state's TAPS - 1 being the first."""
    old = index < TAPS - 1
    before = tl.load(state + index * channels + channel, mask=live & old, other=0.0)
    row = (index - (TAPS - 1)).to(tl.int64)
    now = tl.load(x + row * x_stride + channel, mask=live & (index >= TAPS - 1), other=0.0)
    return tl.where(old, before, now)


@triton.jit
def causal_conv(
    x: tl.tensor,
    states: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    query_start: tl.tensor,
    slots: tl.tensor,
    x_stride: tl.tensor,
    slot_stride: tl.tensor,
    channels: tl.tensor,
    num_sequences: tl.tensor,
    TAPS: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEPT: tl.constexpr,
) -> None:
    """Depthwise convolution over the past, SiLU after it where asked; the state moves on.

    Shape: x [tokens, x_stride], its first `channels`; states: a slot's [TAPS - 1, channels] every
    slot_stride numbers; weight [TAPS, channels]; out [tokens, channels]; slots int64 [sequences];
    KEPT >= TAPS - 1. Grid: blocks of channels, sequences.
    """
    sequence = tl.program_id(1)
    begin, end = tl.load(query_start + sequence), tl.load(query_start + sequence + 1)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    exists = channel < channels
    x += begin.to(tl.int64) * x_stride
    out += begin.to(tl.int64) * channels
    state = states + tl.load(slots + sequence) * slot_stride
    for start in range(0, end - begin, TOKENS):
        token = start + tl.arange(0, TOKENS)[:, None]
        live = (token < end - begin) & exists
        total = tl.zeros([TOKENS, BLOCK], tl.float32)
        for tap in tl.static_range(TAPS):
            factor = tl.load(weight + tap * channels + channel, mask=exists, other=0.0)
            total += (
                seen_at(x, state, token + tap, channel, live, x_stride, channels, TAPS) * factor
            )
        if BIAS:
            total += tl.load(bias + channel, mask=exists, other=0.0)
        if SILU:
            total = total / (1.0 + tl.exp(-total))
        tl.store(out + token.to(tl.int64) * channels + channel, total, mask=live)
    kept = tl.arange(0, KEPT)[:, None]
    live = (kept < TAPS - 1) & exists & (end > begin)
    index = end - begin + kept
    newest = seen_at(x, state, index, channel, live, x_stride, channels, TAPS)
    tl.debug_barrier()
    tl.store(state + kept * channels + channel, newest, mask=live)


@triton.jit
def delta_rule(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    decay: tl.tensor,
    beta: tl.tensor,
    states: tl.tensor,
    out: tl.tensor,
    query_start: tl.tensor,
    slots: tl.tensor,
    slot_stride: tl.tensor,
    key_heads: tl.tensor,
    heads: tl.tensor,
    key_dim: tl.tensor,
    value_dim: tl.tensor,
    num_sequences: tl.tensor,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """S <- decay S; S <- S + k (beta (v - k^T S)); out = S^T q.

    Shape: q, k [tokens, key_heads, key_dim]; v, out [tokens, heads, value_dim]; decay, beta
    [tokens, heads]; states: a slot's [heads, key_dim, value_dim] every slot_stride numbers; KEYS >=
    key_dim. Grid: blocks of value_dim, heads, sequences.
    """
    head, sequence = tl.program_id(1), tl.program_id(2)
    row = tl.arange(0, KEYS)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = (row < key_dim)[:, None] & (column < value_dim)[None, :]
    at = (head * key_dim + row[:, None]) * value_dim + column[None, :]
    place = states + tl.load(slots + sequence) * slot_stride + at
    state = tl.load(place, mask=live, other=0.0)
    key_head = head // (heads // key_heads)
    for token in range(tl.load(query_start + sequence), tl.load(query_start + sequence + 1)):
        keys_at = (token * key_heads + key_head) * key_dim + row
        key = tl.load(k + keys_at, mask=row < key_dim, other=0.0)
        query = tl.load(q + keys_at, mask=row < key_dim, other=0.0)
        values_at = (token * heads + head) * value_dim + column
        value = tl.load(v + values_at, mask=column < value_dim, other=0.0)
        state *= tl.load(decay + token * heads + head)
        change = (value - tl.sum(state * key[:, None], 0)) * tl.load(beta + token * heads + head)
        state += key[:, None] * change[None, :]
        result = tl.sum(state * query[:, None], 0)
        tl.store(out + values_at, result, mask=column < value_dim)
    tl.store(place, state, mask=live)


@triton.jit
def mamba2_scan(
    x: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    decay: tl.tensor,
    states: tl.tensor,
    out: tl.tensor,
    query_start: tl.tensor,
    slots: tl.tensor,
    slot_stride: tl.tensor,
    groups: tl.tensor,
    heads: tl.tensor,
    head_dim: tl.tensor,
    state_dim: tl.tensor,
    num_sequences: tl.tensor,
    STATES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """S <- decay S + x b^T; out = S c.

    Shape: x (dt included), out [tokens, heads, head_dim]; b, c [tokens, groups, state_dim]; decay
    [tokens, heads]; states: a slot's [heads, head_dim, state_dim] every slot_stride numbers; STATES
    >= state_dim. Grid: blocks of head_dim, heads, sequences.
    """
    head, sequence = tl.program_id(1), tl.program_id(2)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, STATES)
    live = (row < head_dim)[:, None] & (column < state_dim)[None, :]
    at = (head * head_dim + row[:, None]) * state_dim + column[None, :]
    place = states + tl.load(slots + sequence) * slot_stride + at
    state = tl.load(place, mask=live, other=0.0)
    group = head // (heads // groups)
    for token in range(tl.load(query_start + sequence), tl.load(query_start + sequence + 1)):
        states_at = (token * groups + group) * state_dim + column
        into = tl.load(b + states_at, mask=column < state_dim, other=0.0)
        outof = tl.load(c + states_at, mask=column < state_dim, other=0.0)
        values_at = (token * heads + head) * head_dim + row
        value = tl.load(x + values_at, mask=row < head_dim, other=0.0)
        state = state * tl.load(decay + token * heads + head) + value[:, None] * into[None, :]
        tl.store(out + values_at, tl.sum(state * outof[None, :], 1), mask=row < head_dim)
    tl.store(place, state, mask=live)
