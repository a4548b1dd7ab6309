"""Mamba-1: a short convolution, then a row of states per channel that decays and takes in x B."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ftengine.kernels.reference.recurrent import causal_conv, mamba2_scan
from ftengine.layers.context import Span, StepContext, fitting
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm


@dataclass(frozen=True)
class Mamba1:
    """One layer. state_index: which recurrent layer of the state pool this is.

    project gives x, then z; select gives dt, B and C of x, each through its norm; widen makes dt
    of every channel. Shape: conv float32 [taps, channels]; rate float64 [channels, states]; skip
    float32 [channels].
    """

    state_index: int
    project: Linear
    conv: torch.Tensor
    conv_bias: torch.Tensor | None
    select: Linear
    norms: tuple[RmsNorm, RmsNorm, RmsNorm]
    widen: Linear
    rate: torch.Tensor
    skip: torch.Tensor
    out: Linear

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Run the layer and add the result to `out`. Shape: normed, out [n, hidden]."""
        width = self.conv.shape[1]
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        mixed, z = wide.split_with_sizes([width, width], dim=1)
        found = torch.empty(normed.shape[0], width)
        for span in context.spans:
            self._scan(mixed, found, context, span)
            context.keep(self.state_index, span)
        attended = fitting(context.buffers.attended, width)
        torch.mul(found, F.silu(z), out=attended)
        self.out.add_to(attended, out)

    def _scan(
        self, mixed: torch.Tensor, found: torch.Tensor, context: StepContext, span: Span
    ) -> None:
        """One sequence. Shape: found [n, channels], its rows written."""
        rows, width = span.rows, mixed.shape[1]
        conv_state, state = context.state(self.state_index, span)
        x = F.silu(causal_conv(mixed[rows], conv_state, self.conv, self.conv_bias))
        dt, b, c = self._selected(x)
        step = F.softplus(self.widen.apply(dt, torch.empty_like(x)).double())
        decay = torch.exp(-self.rate * step.unsqueeze(-1)).float()
        mamba2_scan(
            (x * step.float()).unsqueeze(-1),
            b.unsqueeze(1),
            c.unsqueeze(1),
            decay,
            state,
            found[rows].view(-1, width, 1),
        )
        found[rows] += x * self.skip

    def _selected(self, x: torch.Tensor) -> list[torch.Tensor]:
        """dt, B and C. Shape: x [n, channels]; results [n, rank], [n, states] twice."""
        chosen = self.select.apply(x, torch.empty(x.shape[0], self.select.rows))
        sizes = [norm.weight.shape[0] for norm in self.norms]
        parts = (part.contiguous() for part in chosen.split_with_sizes(sizes, dim=1))
        return [norm.apply(part, part) for norm, part in zip(self.norms, parts, strict=True)]
