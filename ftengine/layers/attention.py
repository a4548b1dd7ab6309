"""Grouped-query attention over paged keys and values, with optional per-head norms and window."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.dispatch import HeadLayout, Kernels
from ftengine.layers.context import StepContext
from ftengine.layers.linear import Linear
from ftengine.layers.rotary import RopeTables


@dataclass(frozen=True)
class Attention:
    """One layer's attention; the result is added to the residual stream.

    Shape: q_norm, k_norm float32 [head_dim]; sinks float32 [num_heads].
    """

    layer_idx: int
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

    def add_to_stream(self, normed: torch.Tensor, context: StepContext) -> None:
        """Attend and add to context.buffers.stream. Shape: normed [n, hidden]."""
        buffers = context.buffers
        keys = context.pool.keys[self.layer_idx]
        values = context.pool.values[self.layer_idx]
        self.qkv.apply(normed, buffers.qkv)
        self.kernels.rope_store(
            buffers.qkv,
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
            buffers.qkv,
            self.heads,
            keys,
            values,
            context.query_start,
            context.context_len,
            context.page_table,
            self.scale,
            window=self.window,
            sinks=self.sinks,
            out=buffers.attended,
        )
        self.out.add_to(buffers.attended, buffers.stream)
