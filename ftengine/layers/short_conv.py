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
        ops, spans, states = self.kernels.state_ops, context.span_index, context.states
        if ops is None or spans is None or states is None:
            self._mix(wide, attended, context)
        else:
            rows = states.layer_rows(self.state_index)
            ops.short_conv(wide, self.conv, self.conv_bias, rows, spans, attended)
        self.out.add_to(attended, out)

    def _mix(self, wide: torch.Tensor, attended: torch.Tensor, context: StepContext) -> None:
        """All between the projections, in torch."""
        b, c, x = wide.split_with_sizes([self.conv.shape[1]] * 3, dim=1)
        gated = b * x
        for span in context.spans:
            (state,) = context.state(self.state_index, span)
            seen = self.kernels.causal_conv(gated[span.rows], state, self.conv, self.conv_bias)
            torch.mul(c[span.rows], seen, out=attended[span.rows])
            context.keep(self.state_index, span)
