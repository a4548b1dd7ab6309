"""Lightning attention: linear attention whose state shrinks by a fixed factor per head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ftengine.kernels.reference.recurrent import mamba2_scan
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm


@dataclass(frozen=True)
class Lightning:
    """One layer. state_index: which recurrent layer of the state pool this is.

    project gives q, k and v of each head in turn, then the gate. Shape: decay float32 [heads].
    """

    state_index: int
    num_heads: int
    head_dim: int
    project: Linear
    decay: torch.Tensor
    norm: RmsNorm
    out: Linear

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Run the layer and add the result to `out`. Shape: normed, out [n, hidden]."""
        count, width = normed.shape[0], self.num_heads * self.head_dim
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        mixed, gate = wide.split_with_sizes([3 * width, width], dim=1)
        heads = F.silu(mixed).view(count, self.num_heads, 3, self.head_dim)
        q, k, v = (heads[:, :, part].contiguous() for part in range(3))
        decay = self.decay.expand(count, -1)
        found = torch.empty(count, self.num_heads, self.head_dim)
        for span in context.spans:
            rows = span.rows
            (state,) = context.state(self.state_index, span)
            mamba2_scan(v[rows], k[rows], q[rows], decay[rows], state, found[rows])
            context.keep(self.state_index, span)
        flat = found.view(count, width)
        self.norm.apply(flat, flat)
        attended = fitting(context.buffers.attended, width)
        torch.mul(flat, gate.sigmoid(), out=attended)
        self.out.add_to(attended, out)
