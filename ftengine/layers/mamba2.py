"""Mamba-2: a short convolution, then a state per head that decays and takes in x B^T."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ftengine.kernels.dispatch import Kernels
from ftengine.layers.context import Span, StepContext, fitting
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
        width = self.num_heads * self.head_dim
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        z, mixed, dt = wide.split_with_sizes([width, self.conv.shape[1], self.num_heads], dim=1)
        # few numbers: in float64, so that vector and scalar code of torch round alike
        step = F.softplus(dt.double() + self.dt_bias).clamp(*self.dt_limit)
        decay = torch.exp(-self.decay_rate * step).float()
        attended = fitting(context.buffers.attended, width)
        found = torch.empty(normed.shape[0], self.num_heads, self.head_dim)
        for span in context.spans:
            self._scan(mixed, step.float(), decay, found, context, span)
            context.keep(self.state_index, span)
        torch.mul(found.view(-1, width), F.silu(z), out=attended)
        self.norm.apply(attended, attended)
        self.out.add_to(attended, out)

    def _scan(
        self,
        mixed: torch.Tensor,
        step: torch.Tensor,
        decay: torch.Tensor,
        found: torch.Tensor,
        context: StepContext,
        span: Span,
    ) -> None:
        """One sequence. Shape: found [n, heads, head_dim], its rows written."""
        rows = span.rows
        conv_state, state = context.state(self.state_index, span)
        x = F.silu(self.kernels.causal_conv(mixed[rows], conv_state, self.conv, self.conv_bias))
        count, groups = x.shape[0], (self.num_groups, self.state_dim)
        inner = self.num_groups * self.state_dim
        h, b, c = x.split_with_sizes([self.num_heads * self.head_dim, inner, inner], dim=1)
        h = h.view(count, self.num_heads, self.head_dim)
        self.kernels.mamba2_scan(
            h * step[rows].unsqueeze(-1),
            b.view(count, *groups),
            c.view(count, *groups),
            decay[rows],
            state,
            found[rows],
        )
        found[rows] += h * self.skip[:, None]
