"""Mamba-2: a short convolution, then a state per head that decays and takes in x B^T."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from ftengine.kernels.dispatch import Kernels
from ftengine.kernels.state_operands import Mamba2Weights
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.linear import Linear
from ftengine.layers.norm import Norm


@dataclass(frozen=True)
class Mamba2:
    """One layer. state_index: which recurrent layer of the state pool this is.

    project gives z, then x | B | C, then dt. Shape: conv float32 [taps, x + B + C], conv_bias the
    same width; decay_rate and dt_bias float64 [heads]; skip float32 [heads].
    """

    state_index: int
    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    dt_limit: tuple[float, float]
    project: Linear
    conv: torch.Tensor
    conv_bias: torch.Tensor | None
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    skip: torch.Tensor
    norm: Norm
    out: Linear
    kernels: Kernels

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Run the layer and add the result to `out`. Shape: normed, out [n, hidden]."""
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        attended = fitting(context.buffers.attended, self.num_heads * self.head_dim)
        states, spans = context.states_of(self.state_index)
        self.kernels.state_ops.mamba2(wide, self._weights, states, spans, attended)
        self.norm.apply(attended, attended)
        self.out.add_to(attended, out)

    @cached_property
    def _weights(self) -> Mamba2Weights:
        return Mamba2Weights(
            self.num_heads,
            self.head_dim,
            self.num_groups,
            self.state_dim,
            self.dt_limit,
            self.conv,
            self.conv_bias,
            self.decay_rate,
            self.dt_bias,
            self.skip,
        )
