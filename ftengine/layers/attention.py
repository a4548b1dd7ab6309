"""Grouped-query attention over paged keys and values, with what families add to it.

Norms per head, a window, sinks and an output gate are settings, not other classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.dispatch import HeadLayout, Kernels
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.linear import Linear
from ftengine.layers.rotary import RopeTables


@dataclass(frozen=True)
class Attention:
    """One layer's attention. kv_index: which keys and values of the pool are its own.

    Shape: q_norm, k_norm float32 [head_dim]; sinks float32 [num_heads]. qkv gives q, k, v and,
    where it has more rows, a gate for every element of the output.
    """

    kv_index: int
    heads: HeadLayout
    qkv: Linear
    out: Linear
    rope: RopeTables
    scale: float
    window: int
    eps: float
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    sinks: torch.Tensor | None
    interleaved: bool
    kernels: Kernels

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Attend and add the result to `out`. Shape: normed, out [n, hidden]."""
        buffers = context.buffers
        keys = context.pool.keys[self.kv_index]
        values = context.pool.values[self.kv_index]
        wide = self.qkv.apply(normed, fitting(buffers.qkv, self.qkv.rows))
        qkv = fitting(wide, self.heads.qkv_cols)
        attended = fitting(buffers.attended, self.heads.heads * self.heads.head_dim)
        self.kernels.rope_store(
            qkv,
            self.heads,
            self.rope.cos,
            self.rope.sin,
            context.positions,
            context.slots,
            keys,
            values,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            eps=self.eps,
            interleaved=self.interleaved,
        )
        self.kernels.attention(
            qkv,
            self.heads,
            keys,
            values,
            context.query_start,
            context.context_len,
            context.page_table,
            self.scale,
            window=self.window,
            sinks=self.sinks,
            out=attended,
        )
        if wide is not qkv:
            attended.mul_(wide[:, self.heads.qkv_cols :].sigmoid_())
        self.out.add_to(attended, out)
