"""Mixers with a state on a GPU: a few launches for all spans of a step, between two projections."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ftengine.gpu.arena import Arena
from ftengine.kernels.state_operands import DeltaWeights, Mamba2Weights, SpanIndex, StateRows
from ftengine.kernels.triton import state_calls
from ftengine.kernels.triton.calls import KernelCall


class GpuStates:
    """StateOps. arena: the work memory of the moment, cut anew for each call."""

    def __init__(self, launch: Callable[[KernelCall], None], arena: Callable[[], Arena]) -> None:
        self._launch = launch
        self._arena = arena

    def gated_delta(
        self,
        wide: torch.Tensor,
        weights: DeltaWeights,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """As StateOps. Steps of one token per span take the form of decoding."""
        arena, tokens = self._arena(), wide.shape[0]
        arena.reset()
        mixed = arena.take(tokens, weights.mixed_width)
        found = arena.take(tokens, weights.value_width)
        conv = weights.conv
        self._launch(state_calls.causal_conv(wide, states, spans, conv, mixed, silu=True))
        rule = state_calls.delta_rule if spans.count == tokens else state_calls.delta_chunk
        self._launch(rule(mixed, wide, weights, states, spans, found))
        self._launch(state_calls.gated_norm(found, wide, weights, out))

    def mamba2(
        self,
        wide: torch.Tensor,
        weights: Mamba2Weights,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """As StateOps."""
        arena, x = self._arena(), wide[:, weights.width :]
        arena.reset()
        mixed = arena.take(wide.shape[0], weights.mixed_width)
        conv, bias = weights.conv, weights.conv_bias
        self._launch(state_calls.causal_conv(x, states, spans, conv, mixed, bias, silu=True))
        self._launch(state_calls.mamba2_scan(mixed, wide, weights, states, spans, out))

    def short_conv(
        self,
        wide: torch.Tensor,
        conv: torch.Tensor,
        bias: torch.Tensor | None,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """As StateOps."""
        call = state_calls.causal_conv(wide, states, spans, conv, out, bias, gated=True)
        self._launch(call)
