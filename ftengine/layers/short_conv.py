"""Gated short convolution: the whole mixer of a layer that looks back only a few tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.dispatch import Kernels
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.linear import Linear


@dataclass(frozen=True)
class ShortConv:
    """One layer. state_index: which recurrent layer of the state pool this is.

    project gives B, C and x, each `width` wide. Shape: conv float32 [taps, width], conv_bias
    float32 [width].
    """

    state_index: int
    project: Linear
    conv: torch.Tensor
    conv_bias: torch.Tensor | None
    out: Linear
    kernels: Kernels

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Run the layer and add the result to `out`. Shape: normed, out [n, hidden]."""
        width = self.conv.shape[1]
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        attended = fitting(context.buffers.attended, width)
        states, spans = context.states_of(self.state_index)
        ops = self.kernels.state_ops
        ops.short_conv(wide, self.conv, self.conv_bias, states, spans, attended)
        self.out.add_to(attended, out)
