"""Gated DeltaNet: a short convolution, then a state per value head that follows the delta rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from ftengine.kernels.dispatch import Kernels
from ftengine.kernels.state_operands import DeltaHeads, DeltaWeights
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.linear import Linear, TiledLinear
from ftengine.layers.norm import RmsNorm


@dataclass(frozen=True)
class GatedDelta:
    """One layer. state_index: which recurrent layer of the state pool this is.

    project gives q | k | v, then z, b and a. Shape: conv float32 [taps, q + k + v]; decay_rate and
    dt_bias float64 [value_heads]. q_norm and k_norm make rows of unit length; q's is scaled too.
    """

    state_index: int
    heads: DeltaHeads
    project: Linear
    conv: torch.Tensor
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    q_norm: RmsNorm
    k_norm: RmsNorm
    norm: RmsNorm
    out: Linear | TiledLinear
    kernels: Kernels

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Run the layer and add the result to `out`. Shape: normed, out [n, hidden]."""
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        attended = fitting(context.buffers.attended, self.heads.value_width)
        states, spans = context.states_of(self.state_index)
        self.kernels.state_ops.gated_delta(wide, self._weights, states, spans, attended)
        self.out.add_to(attended, out)

    @cached_property
    def _weights(self) -> DeltaWeights:
        heads = self.heads
        return DeltaWeights(
            heads.key_heads,
            heads.value_heads,
            heads.key_dim,
            heads.value_dim,
            self.conv,
            self.decay_rate,
            self.dt_bias,
            self.q_norm.weight,
            self.k_norm.weight,
            self.norm.weight,
            self.q_norm.eps,
            self.norm.eps,
        )
