"""The gated delta net between its projections, token after token: the step of decoding.

A program keeps its part of the state in registers from its sequence's first new token to its last,
so a cut between two calls changes no bit. Long chunks: delta_chunk.py. Reference: states.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.recurrent import goes_on, is_first, softplus


@triton.jit
def unit(
    value: tl.tensor, weight: tl.tensor, size: tl.tensor, eps: tl.tensor, AXIS: tl.constexpr
) -> tl.tensor:
    """value / rms(value) * weight. Shape: value [size] or [tokens, size], AXIS its last."""
    square = tl.sum(value * value, AXIS) / size + eps
    scale = 1.0 / tl.sqrt_rn(square)
    if AXIS == 1:
        found = value * scale[:, None] * weight[None, :]
    else:
        found = value * scale * weight
    return found


@triton.jit
def log_decay(a: tl.tensor, rate: tl.tensor, bias: tl.tensor) -> tl.tensor:
    """Logarithm of what a step leaves of the state. Shape: float32 a, float64 rate and bias."""
    return -rate * softplus(a.to(tl.float64) + bias)


@triton.jit
def strength(b: tl.tensor) -> tl.tensor:
    """How much of the change is taken."""
    return (1.0 / (1.0 + tl.exp(-b.to(tl.float64)))).to(tl.float32)


@triton.jit
def delta_rule(
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
) -> None:
    """S <- decay S; S <- S + k (beta (v - k^T S)); out = S^T q, of unit q and k.

    Shape: mixed [tokens, q | k | v], contiguous; gates: a token's b | a [2 * heads] every
    gates_stride numbers; decay_rate, dt_bias float64 [heads]; q_weight, k_weight [key_dim]; out
    [tokens, heads, value_dim]; states: a slot's [heads, key_dim, value_dim] every slot_stride
    numbers; KEYS >= key_dim. Grid: blocks of value_dim, heads, spans.
    """
    head, span = tl.program_id(1), tl.program_id(2)
    row = tl.arange(0, KEYS)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within, there = row < key_dim, column < value_dim
    live = within[:, None] & there[None, :]
    at = (head * key_dim + row[:, None]) * value_dim + column[None, :]
    width = key_heads * key_dim
    keys_at = head // (heads // key_heads) * key_dim + row
    if is_first(slots, span):
        slot = tl.load(slots + span)
        place = states + slot * slot_stride + at
        state = tl.load(place, mask=live, other=0.0)
        rate, bias = tl.load(decay_rate + head), tl.load(dt_bias + head)
        for_q = tl.load(q_weight + row, mask=within, other=0.0)
        for_k = tl.load(k_weight + row, mask=within, other=0.0)
        going = span < num_spans
        while going:
            for token in range(tl.load(starts + span), tl.load(starts + span + 1)):
                source = mixed + token * (2 * width + heads * value_dim)
                query = tl.load(source + keys_at, mask=within, other=0.0)
                query = unit(query, for_q, key_dim, eps, 0)
                key = tl.load(source + width + keys_at, mask=within, other=0.0)
                key = unit(key, for_k, key_dim, eps, 0)
                values_at = head * value_dim + column
                value = tl.load(source + 2 * width + values_at, mask=there, other=0.0)
                gate = gates + token * gates_stride + head
                state *= tl.exp(log_decay(tl.load(gate + heads), rate, bias)).to(tl.float32)
                change = (value - tl.sum(state * key[:, None], 0)) * strength(tl.load(gate))
                state += key[:, None] * change[None, :]
                result = tl.sum(state * query[:, None], 0)
                target = out + token * (heads * value_dim) + values_at
                tl.store(target, result, mask=there)
            keep = tl.load(keeps + span)
            tl.store(states + keep * slot_stride + at, state, mask=live & (keep >= 0))
            span += 1
            going = goes_on(slots, span, slot, num_spans)
        tl.store(place, state, mask=live)


@triton.jit
def gated_norm(
    found: tl.tensor,
    gate: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    gate_stride: tl.tensor,
    out_stride: tl.tensor,
    heads: tl.tensor,
    dim: tl.tensor,
    eps: tl.tensor,
    num_tokens: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """out = norm(found) * silu(gate), head by head.

    Shape: found [tokens, heads, dim], contiguous; gate and out [tokens, heads * dim], rows as far
    apart as the strides say; weight [dim]; BLOCK >= dim. Grid: tokens, heads.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    live = at < dim
    value = tl.load(found + (token * heads + head) * dim + at, mask=live, other=0.0)
    factor = tl.load(weight + at, mask=live, other=0.0)
    z = tl.load(gate + token * gate_stride + head * dim + at, mask=live, other=0.0)
    result = unit(value, factor, dim, eps, 0) * (z / (1.0 + tl.exp(-z)))
    tl.store(out + token * out_stride + head * dim + at, result, mask=live)
