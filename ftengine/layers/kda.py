"""Kimi delta attention: the delta rule with a decay of its own for every channel of the keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ftengine.kernels.reference.recurrent import causal_conv, delta_rule
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm


@dataclass(frozen=True)
class Kda:
    """One layer. state_index: which recurrent layer of the state pool this is.

    project gives q | k | v, what leads to decays and gates, and one number per head. Shape: conv
    float32 [taps, q + k + v]; rate float64 [heads, 1]; dt_bias float64 [heads, head_dim]. widen:
    from there to the decays and to the gates, None where project gives them itself.
    """

    state_index: int
    num_heads: int
    head_dim: int
    project: Linear
    widen_decay: Linear | None
    widen_gate: Linear | None
    conv: torch.Tensor
    rate: torch.Tensor
    dt_bias: torch.Tensor
    bound: float
    q_norm: RmsNorm
    k_norm: RmsNorm
    norm: RmsNorm
    out: Linear

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Run the layer and add the result to `out`. Shape: normed, out [n, hidden]."""
        count, width = normed.shape[0], self.num_heads * self.head_dim
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        inner = (self.project.rows - 3 * width - self.num_heads) // 2
        mixed, f, g, b = wide.split_with_sizes([3 * width, inner, inner, self.num_heads], dim=1)
        decay = self._decay(_widened(self.widen_decay, f, width))
        gate = _widened(self.widen_gate, g, width)
        beta = b.double().sigmoid().float()
        found = torch.empty(count, self.num_heads, self.head_dim)
        for span in context.spans:
            conv_state, state = context.state(self.state_index, span)
            rows = span.rows
            x = F.silu(causal_conv(mixed[rows], conv_state, self.conv))
            q, k, v = (part.reshape(-1, self.head_dim) for part in x.chunk(3, dim=1))
            shape = (-1, self.num_heads, self.head_dim)
            delta_rule(
                self.q_norm.apply(q, torch.empty_like(q)).view(shape),
                self.k_norm.apply(k, torch.empty_like(k)).view(shape),
                v.view(shape),
                decay[rows],
                beta[rows],
                state,
                found[rows],
            )
            context.keep(self.state_index, span)
        flat = found.view(-1, self.head_dim)
        self.norm.apply(flat, flat)
        attended = fitting(context.buffers.attended, width)
        torch.mul(found.view(count, -1), gate.sigmoid(), out=attended)
        self.out.add_to(attended, out)

    def _decay(self, f: torch.Tensor) -> torch.Tensor:
        """Factor of every channel. Shape: f [n, heads * head_dim]; result [n, heads, head_dim]."""
        wide = f.double().view(-1, self.num_heads, self.head_dim) + self.dt_bias
        if self.bound:
            return torch.exp(self.bound * torch.sigmoid(self.rate * wide)).float()
        return torch.exp(-self.rate * F.softplus(wide)).float()


def _widened(widen: Linear | None, x: torch.Tensor, width: int) -> torch.Tensor:
    """Shape: x [n, rank] or [n, width]; result contiguous [n, width]."""
    x = x.contiguous()
    return x if widen is None else widen.apply(x, torch.empty(x.shape[0], width))
