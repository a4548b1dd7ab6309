"""Routed experts of a few tokens: gate and up with activation, down, and the ordered sum.

One program per panel and (token, place) pair, so a pair's numbers never depend on the batch. A row
number below 0 is a pair that the CPU computes; merge takes its result from there. Many tokens:
grouped_gemm.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.panel import panel_bytes, panel_dot


@triton.jit
def gelu_tanh(x: tl.tensor) -> tl.tensor:
    """GELU with the tanh formula."""
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    # 1 - 2 / (e^2y + 1) is tanh y without an overflow that becomes NaN
    return 0.5 * x * (2.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0))


@triton.jit
def activate(
    gate: tl.tensor, up: tl.tensor, alpha: tl.tensor, limit: tl.tensor, ACTIVATION: tl.constexpr
) -> tl.tensor:
    """act(gate) * up. Source: reference/expert_ffn.py."""
    if ACTIVATION == "gelu_tanh":
        value = gelu_tanh(gate) * up
    elif ACTIVATION == "relu2":
        positive = tl.maximum(gate, 0.0)
        value = positive * positive * up
    elif ACTIVATION == "swiglu_clamp":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        value = (up + 1.0) * gate / (1.0 + tl.exp(-alpha * gate))
    elif ACTIVATION == "silu_clamp":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        value = gate / (1.0 + tl.exp(-gate)) * up
    else:
        value = gate / (1.0 + tl.exp(-gate)) * up
    return value


@triton.jit
def bias_at(row: tl.tensor, index: tl.tensor, live: tl.tensor, BIAS: tl.constexpr) -> tl.tensor:
    """Bias numbers of an expert's row from a byte address on, 0 where experts have none."""
    value = tl.zeros(index.shape, tl.float32)
    if BIAS == "f32":
        value = tl.load(row.to(tl.pointer_type(tl.float32)) + index, mask=live, other=0.0)
    elif BIAS == "f16":
        half = tl.load(row.to(tl.pointer_type(tl.float16)) + index, mask=live, other=0.0)
        value = half.to(tl.float32)
    elif BIAS == "bf16":
        bits = tl.load(row.to(tl.pointer_type(tl.uint16)) + index, mask=live, other=0)
        value = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return value


@triton.jit
def halves(total: tl.tensor) -> tl.tensor:
    """The gate and up parts of a panel's 32 sums. Shape: [32] -> two [16]."""
    return tl.split(tl.permute(tl.reshape(total, (2, 16)), (1, 0)))


@triton.jit
def gate_up(
    x: tl.tensor,
    rows: tl.tensor,
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
    num_pairs: tl.tensor,
    FORMAT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """inner = act(gate x) * (up x) of every pair that has a row; act(up x) where none is GATED.

    Shape: x [tokens, hidden]; rows int32 [pairs], bank rows or < 0; inner [pairs, inter].
    Grid: panels of 16 gate rows, or of 32 rows of up alone, pairs.
    """
    panel, pair = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + pair)
    if row < 0:
        return
    expert = bank + row.to(tl.int64) * row_bytes
    at = expert + offset + panel * panel_bytes(hidden, FORMAT)
    total = panel_dot(at, x + (pair // num_places) * hidden, hidden, FORMAT, BLOCK)
    if GATED:
        gate, up = halves(total)
        index = panel * 16 + tl.arange(0, 16)
        gate += bias_at(expert + bias_offset, index, index < inter, BIAS)
        up += bias_at(expert + bias_offset, index + inter, index < inter, BIAS)
        value = activate(gate, up, alpha, limit, ACTIVATION)
    else:
        index = panel * 32 + tl.arange(0, 32)
        value = activate(total, tl.full([32], 1.0, tl.float32), alpha, limit, ACTIVATION)
    tl.store(inner + pair * inter + index, value, mask=index < inter)


@triton.jit
def down(
    inner: tl.tensor,
    rows: tl.tensor,
    bank: tl.tensor,
    parts: tl.tensor,
    hidden: tl.tensor,
    inter: tl.tensor,
    row_bytes: tl.tensor,
    offset: tl.tensor,
    bias_offset: tl.tensor,
    num_pairs: tl.tensor,
    FORMAT: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """parts = down inner of every pair that has a row, before routing weights.

    Shape: inner [pairs, inter]; parts [pairs, hidden]. Grid: panels of 32 rows, pairs.
    """
    panel, pair = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + pair)
    if row < 0:
        return
    expert = bank + row.to(tl.int64) * row_bytes
    at = expert + offset + panel * panel_bytes(inter, FORMAT)
    total = panel_dot(at, inner + pair * inter, inter, FORMAT, BLOCK)
    index = panel * 32 + tl.arange(0, 32)
    live = index < hidden
    total += bias_at(expert + bias_offset, index, live, BIAS)
    tl.store(parts + pair * hidden + index, total, mask=live)


@triton.jit
def merge(
    parts: tl.tensor,
    cpu_parts: tl.tensor,
    rows: tl.tensor,
    weights: tl.tensor,
    out: tl.tensor,
    num_places: tl.tensor,
    hidden: tl.tensor,
    num_tokens: tl.tensor,
    ACCUMULATE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out (+)= the weighted sum of each token's pairs, in routing order wherever they were made.

    Shape: parts, cpu_parts [pairs, hidden]; weights [pairs]; out [tokens, hidden].
    Grid: blocks of hidden, tokens.
    """
    token = tl.program_id(1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = index < hidden
    total = tl.zeros([BLOCK], tl.float32)
    for place in range(num_places):
        pair = token * num_places + place
        on_device = tl.load(rows + pair) >= 0
        at = pair.to(tl.int64) * hidden + index
        here = tl.load(parts + at, mask=live & on_device, other=0.0)
        there = tl.load(cpu_parts + at, mask=live & (not on_device), other=0.0)
        total += tl.load(weights + pair) * tl.where(on_device, here, there)
    at = out + token.to(tl.int64) * hidden + index
    if ACCUMULATE:
        total += tl.load(at, mask=live, other=0.0)
    tl.store(at, total, mask=live)
