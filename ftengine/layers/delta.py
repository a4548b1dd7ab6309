"""Gated DeltaNet: a short convolution, then a state per value head that follows the delta rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F

from ftengine.kernels.dispatch import Kernels
from ftengine.kernels.native_states import DeltaWeights
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm


@dataclass(frozen=True)
class DeltaHeads:
    """key_heads heads of q and k serve value_heads heads of v. Units: numbers per head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def key_width(self) -> int:
        """All key heads."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """All value heads."""
        return self.value_heads * self.value_dim


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
    out: Linear
    kernels: Kernels

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Run the layer and add the result to `out`. Shape: normed, out [n, hidden]."""
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        attended = fitting(context.buffers.attended, self.heads.value_width)
        ops, spans, states = self.kernels.state_ops, context.span_index, context.states
        if ops is None or spans is None or states is None:
            self._mix(wide, attended, context)
        else:
            rows = states.layer_rows(self.state_index)
            ops.gated_delta(wide, self._weights, rows, spans, attended)
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

    def _mix(self, wide: torch.Tensor, attended: torch.Tensor, context: StepContext) -> None:
        """All between the projections, in torch."""
        heads, count = self.heads, wide.shape[0]
        mixed_width = self.conv.shape[1]
        mixed, z, b, a = wide.split_with_sizes(
            [mixed_width, heads.value_width, heads.value_heads, heads.value_heads], dim=1
        )
        # few numbers: in float64, so that vector and scalar code of torch round alike
        decay = torch.exp(-self.decay_rate * F.softplus(a.double() + self.dt_bias)).float()
        beta = b.double().sigmoid().float()
        found = torch.empty(count, heads.value_heads, heads.value_dim)
        for span in context.spans:
            conv_state, state = context.state(self.state_index, span)
            rows = span.rows
            x = F.silu(self.kernels.causal_conv(mixed[rows], conv_state, self.conv))
            q, k, v = self._heads(x)
            self.kernels.delta_rule(q, k, v, decay[rows], beta[rows], state, found[rows])
            context.keep(self.state_index, span)
        flat = found.view(-1, heads.value_dim)
        self.norm.apply(flat, flat)
        torch.mul(found.view(count, -1), F.silu(z), out=attended)

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Shape: x [n, q + k + v] -> q and k [n, key_heads, key_dim], v [n, value_heads, ...]."""
        heads = self.heads
        q, k, v = x.split_with_sizes([heads.key_width, heads.key_width, heads.value_width], dim=1)
        shape = (x.shape[0], heads.key_heads, heads.key_dim)
        rows = (q.reshape(-1, heads.key_dim), k.reshape(-1, heads.key_dim))
        return (
            self.q_norm.apply(rows[0], torch.empty_like(rows[0])).view(shape),
            self.k_norm.apply(rows[1], torch.empty_like(rows[1])).view(shape),
            v.view(x.shape[0], heads.value_heads, heads.value_dim),
        )
