"""Launches of layers with state, for all spans of a step. Shapes: kernels/state_operands.py.

`mixed` is what the convolution gives, contiguous.
"""

from __future__ import annotations

import torch

from ftengine.gpu.kernel_table import Build
from ftengine.kernels.state_operands import DeltaWeights, Mamba2Weights, SpanIndex, StateRows
from ftengine.kernels.triton import builds
from ftengine.kernels.triton.calls import KernelCall, Value


def _of_spans(states: StateRows, part: int, spans: SpanIndex) -> dict[str, Value]:
    """The arguments that all of them take."""
    return {
        "states": states.parts[part],
        "slot_stride": states.slot_stride,
        "starts": spans.start,
        "slots": spans.slot,
        "keeps": spans.keep,
        "num_spans": spans.count,
    }


def causal_conv(
    x: torch.Tensor,
    states: StateRows,
    spans: SpanIndex,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    silu: bool = False,
    gated: bool = False,
) -> KernelCall:
    """Shape: x [tokens, channels or more], with gated B | C | x; weight [taps, channels]; out
    [tokens, channels]; rows of both as far apart as their strides say.
    """
    return KernelCall(
        builds.causal_conv(weight.shape[0], bias is not None, silu, gated),
        {
            **_of_spans(states, 0, spans),
            "x": x,
            "weight": weight,
            "bias": bias,
            "out": out,
            "x_stride": x.stride(0),
            "out_stride": out.stride(0),
            "channels": weight.shape[1],
        },
    )


def delta_rule(
    mixed: torch.Tensor,
    wide: torch.Tensor,
    weights: DeltaWeights,
    states: StateRows,
    spans: SpanIndex,
    out: torch.Tensor,
) -> KernelCall:
    """Token after token: decoding. Shape: out [tokens, all value heads], contiguous."""
    build = builds.delta_rule(weights.key_dim)
    return _delta(build, mixed, wide, weights, states, spans, out)


def delta_chunk(
    mixed: torch.Tensor,
    wide: torch.Tensor,
    weights: DeltaWeights,
    states: StateRows,
    spans: SpanIndex,
    out: torch.Tensor,
) -> KernelCall:
    """Chunk after chunk: prompts. Shape: as delta_rule."""
    build = builds.delta_chunk(weights.key_dim)
    return _delta(build, mixed, wide, weights, states, spans, out)


def _delta(
    build: Build,
    mixed: torch.Tensor,
    wide: torch.Tensor,
    weights: DeltaWeights,
    states: StateRows,
    spans: SpanIndex,
    out: torch.Tensor,
) -> KernelCall:
    return KernelCall(
        build,
        {
            **_of_spans(states, 1, spans),
            "mixed": mixed,
            "gates": wide[:, weights.mixed_width + weights.value_width :],
            "decay_rate": weights.decay_rate,
            "dt_bias": weights.dt_bias,
            "q_weight": weights.q_weight,
            "k_weight": weights.k_weight,
            "out": out,
            "positions": spans.position,
            "gates_stride": wide.stride(0),
            "key_heads": weights.key_heads,
            "heads": weights.value_heads,
            "key_dim": weights.key_dim,
            "value_dim": weights.value_dim,
            "eps": weights.qk_eps,
        },
    )


def gated_norm(
    found: torch.Tensor, wide: torch.Tensor, weights: DeltaWeights, out: torch.Tensor
) -> KernelCall:
    """Shape: found [tokens, all value heads], contiguous; out the same, rows apart."""
    return KernelCall(
        builds.gated_norm(weights.value_dim),
        {
            "found": found,
            "gate": wide[:, weights.mixed_width :],
            "weight": weights.norm_weight,
            "out": out,
            "gate_stride": wide.stride(0),
            "out_stride": out.stride(0),
            "heads": weights.value_heads,
            "dim": weights.value_dim,
            "eps": weights.norm_eps,
            "num_tokens": found.shape[0],
        },
    )


def mamba2_scan(
    mixed: torch.Tensor,
    wide: torch.Tensor,
    weights: Mamba2Weights,
    states: StateRows,
    spans: SpanIndex,
    out: torch.Tensor,
) -> KernelCall:
    """Shape: out [tokens, all heads], rows apart."""
    return KernelCall(
        builds.mamba2_scan(weights.state_dim),
        {
            **_of_spans(states, 1, spans),
            "mixed": mixed,
            "wide": wide,
            "decay_rate": weights.decay_rate,
            "dt_bias": weights.dt_bias,
            "skip": weights.skip,
            "out": out,
            "wide_stride": wide.stride(0),
            "out_stride": out.stride(0),
            "groups": weights.groups,
            "heads": weights.heads,
            "head_dim": weights.head_dim,
            "state_dim": weights.state_dim,
            "dt_least": weights.dt_limit[0],
            "dt_most": weights.dt_limit[1],
        },
    )
