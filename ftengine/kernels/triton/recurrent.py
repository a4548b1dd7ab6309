"""Layers with state, token after token, for several sequences: convolution and Mamba-2.

A program goes through all spans of one sequence, in order, and keeps its part of the state in
registers from the first new token to the last, so a cut between two calls changes no bit. The delta
rule: delta.py. Reference: states.py.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_first(slots: tl.tensor, span: tl.tensor) -> tl.tensor:
    """Whether a span is the first of its sequence: those of one follow each other."""
    before = tl.load(slots + span - 1, mask=span > 0, other=-1)
    return tl.load(slots + span) != before


@triton.jit
def goes_on(slots: tl.tensor, span: tl.tensor, slot: tl.tensor, num_spans: tl.tensor) -> tl.tensor:
    """Whether there is a span, and it goes on with the state in `slot`."""
    return tl.load(slots + span, mask=span < num_spans, other=-1) == slot


@triton.jit
def softplus(x: tl.tensor) -> tl.tensor:
    """log(1 + e^x), without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


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
    GATED: tl.constexpr,
) -> tl.tensor:
    """Inputs by index, the state's TAPS - 1 being the first."""
    old = index < TAPS - 1
    before = tl.load(state + index * channels + channel, mask=live & old, other=0.0)
    row = x + (index - (TAPS - 1)).to(tl.int64) * x_stride + channel
    new = live & (index >= TAPS - 1)
    now = tl.load(row, mask=new, other=0.0)
    if GATED:
        now *= tl.load(row + 2 * channels, mask=new, other=0.0)
    return tl.where(old, before, now)


@triton.jit
def causal_conv(
    x: tl.tensor,
    states: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    out: tl.tensor,
    starts: tl.tensor,
    slots: tl.tensor,
    keeps: tl.tensor,
    slot_stride: tl.tensor,
    x_stride: tl.tensor,
    out_stride: tl.tensor,
    channels: tl.tensor,
    num_spans: tl.tensor,
    TAPS: tl.constexpr,
    BIAS: tl.constexpr,
    SILU: tl.constexpr,
    GATED: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    KEPT: tl.constexpr,
) -> None:
    """Depthwise convolution over the past, SiLU after it where asked; the state moves on.

    GATED: rows of x are B | C | x, out = C * conv(B * x). Shape: x [tokens, x_stride], its first
    `channels`; states: a slot's [TAPS - 1, channels] every slot_stride numbers; weight [TAPS,
    channels]; out [tokens, out_stride]; starts int32 [spans + 1], slots and keeps int64 [spans];
    KEPT >= TAPS - 1. Grid: blocks of channels, spans.
    """
    span = tl.program_id(1)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    exists = channel < channels
    kept = tl.arange(0, KEPT)[:, None]
    stays = (kept < TAPS - 1) & exists
    if is_first(slots, span):
        begin = tl.load(starts + span)
        x += begin.to(tl.int64) * x_stride
        out += begin.to(tl.int64) * out_stride
        slot = tl.load(slots + span)
        state = states + slot * slot_stride
        first = begin - begin
        newest = tl.zeros([KEPT, BLOCK], tl.float32)
        going = span < num_spans
        while going:
            end = tl.load(starts + span + 1) - begin
            for start in range(first, end, TOKENS):
                token = start + tl.arange(0, TOKENS)[:, None]
                live = (token < end) & exists
                total = tl.zeros([TOKENS, BLOCK], tl.float32)
                for tap in tl.static_range(TAPS):
                    factor = tl.load(weight + tap * channels + channel, mask=exists, other=0.0)
                    seen = seen_at(
                        x, state, token + tap, channel, live, x_stride, channels, TAPS, GATED
                    )
                    total += seen * factor
                if BIAS:
                    total += tl.load(bias + channel, mask=exists, other=0.0)
                if SILU:
                    total = total / (1.0 + tl.exp(-total))
                row = token.to(tl.int64)
                if GATED:
                    opened = x + row * x_stride + channels + channel
                    total *= tl.load(opened, mask=live, other=0.0)
                tl.store(out + row * out_stride + channel, total, mask=live)
            # the state itself is read until the sequence's last span
            newest = seen_at(x, state, end + kept, channel, stays, x_stride, channels, TAPS, GATED)
            keep = tl.load(keeps + span)
            copy = states + keep * slot_stride + kept * channels + channel
            tl.store(copy, newest, mask=stays & (keep >= 0))
            first = end
            span += 1
            going = goes_on(slots, span, slot, num_spans)
        tl.debug_barrier()
        tl.store(state + kept * channels + channel, newest, mask=stays)


@triton.jit
def mamba2_scan(
    mixed: tl.tensor,
    wide: tl.tensor,
    decay_rate: tl.tensor,
    dt_bias: tl.tensor,
    skip: tl.tensor,
    states: tl.tensor,
    out: tl.tensor,
    starts: tl.tensor,
    slots: tl.tensor,
    keeps: tl.tensor,
    slot_stride: tl.tensor,
    wide_stride: tl.tensor,
    out_stride: tl.tensor,
    groups: tl.tensor,
    heads: tl.tensor,
    head_dim: tl.tensor,
    state_dim: tl.tensor,
    dt_least: tl.tensor,
    dt_most: tl.tensor,
    num_spans: tl.tensor,
    STATES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """S <- decay S + dt x B^T; out = (S C + skip x) * silu(z).

    Shape: mixed [tokens, x | B | C], contiguous; wide [tokens, wide_stride]: z, what mixed was made
    of, dt; decay_rate, dt_bias float64 and skip [heads]; states: a slot's [heads, head_dim,
    state_dim] every slot_stride numbers; STATES >= state_dim. Grid: blocks of head_dim, heads,
    spans.
    """
    head, span = tl.program_id(1), tl.program_id(2)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, STATES)
    there, within = row < head_dim, column < state_dim
    live = there[:, None] & within[None, :]
    at = (head * head_dim + row[:, None]) * state_dim + column[None, :]
    width, inner = heads * head_dim, groups * state_dim
    group = head // (heads // groups)
    if is_first(slots, span):
        slot = tl.load(slots + span)
        place = states + slot * slot_stride + at
        state = tl.load(place, mask=live, other=0.0)
        rate, bias = tl.load(decay_rate + head), tl.load(dt_bias + head)
        factor = tl.load(skip + head)
        going = span < num_spans
        while going:
            for token in range(tl.load(starts + span), tl.load(starts + span + 1)):
                source = mixed + token * (width + 2 * inner)
                value = tl.load(source + head * head_dim + row, mask=there, other=0.0)
                into_at = source + width + group * state_dim + column
                into = tl.load(into_at, mask=within, other=0.0)
                outof = tl.load(into_at + inner, mask=within, other=0.0)
                gates = wide + token * wide_stride
                dt = tl.load(gates + 2 * width + 2 * inner + head).to(tl.float64)
                step = softplus(dt + bias)
                step = tl.minimum(tl.maximum(step, dt_least), dt_most)
                decay = tl.exp(-rate * step).to(tl.float32)
                state = state * decay + (value * step.to(tl.float32))[:, None] * into[None, :]
                result = tl.sum(state * outof[None, :], 1) + value * factor
                z = tl.load(gates + head * head_dim + row, mask=there, other=0.0)
                result = result * (z / (1.0 + tl.exp(-z)))
                target = out + token * out_stride + head * head_dim + row
                tl.store(target, result, mask=there)
            keep = tl.load(keeps + span)
            tl.store(states + keep * slot_stride + at, state, mask=live & (keep >= 0))
            span += 1
            going = goes_on(slots, span, slot, num_spans)
        tl.store(place, state, mask=live)
