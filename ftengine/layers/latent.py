"""Multi-head latent attention in its absorbed form: all heads read one small vector per token.

With keys c and a shared rotated key r, score = (W_UK^T q) . c + q_r . r, so attention over latents
is grouped-query attention of one wide key head, which the paged kernels compute. Source:
DeepSeek-V2, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.dispatch import HeadLayout, Kernels
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.indexer import Choice, Indexer
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm
from ftengine.layers.paged import attend_chosen, store_rows
from ftengine.layers.rotary import RopeTables, turn_last

_BLOCK = 8
"""Tokens of one batched product: always as many, so that a token's result depends on it alone."""


@dataclass(frozen=True)
class LatentHeads:
    """Units: numbers per head; widths of the latents, q_rank 0 = none."""

    count: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    q_rank: int

    @property
    def head_dim(self) -> int:
        """Numbers of a query."""
        return self.nope_dim + self.rope_dim

    @property
    def layout(self) -> HeadLayout:
        """As the attention kernels see them."""
        return HeadLayout(self.count, 1, self.kv_rank + self.rope_dim)


@dataclass(frozen=True)
class LatentAttention:
    """One layer. kv_index: which pages hold its latents.

    project gives the query or its latent, the latent with its key, what the indexer asks for, and
    a gate of one number per head where there is one. Shape: key_up float32 [heads, nope_dim,
    kv_rank]; value_up [heads, kv_rank, value_dim]. temper: factor of each position, [positions].
    """

    kv_index: int
    heads: LatentHeads
    project: Linear
    q_norm: RmsNorm | None
    q_up: Linear | None
    kv_norm: RmsNorm
    key_up: torch.Tensor
    value_up: torch.Tensor
    out: Linear
    rope: RopeTables
    interleaved: bool
    scale: float
    temper: torch.Tensor | None
    gated: bool
    indexer: Indexer | None
    choice: Choice | None
    kernels: Kernels

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Attend and add the result to `out`. Shape: normed, out [n, hidden]."""
        heads, count = self.heads, normed.shape[0]
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        q_width = heads.q_rank or heads.count * heads.head_dim
        widths = [q_width, heads.kv_rank, heads.rope_dim]
        widths.append(wide.shape[1] - sum(widths))
        q, latent, key, rest = wide.split_with_sizes(widths, dim=1)
        if self.q_norm is not None and self.q_up is not None:
            q = self.q_norm.apply(q.contiguous(), torch.empty(count, q_width))
            if self.indexer is not None:
                self.indexer.choose(q, rest, context)
            q = self.q_up.apply(q, torch.empty(count, heads.count * heads.head_dim))
        self._store(latent, key, context)
        attended = self._attend(self._queries(q, context), context)
        if self.gated:
            gate = rest[:, -heads.count :].double().sigmoid().float()
            attended.view(count, heads.count, -1).mul_(gate[:, :, None])
        self.out.add_to(attended, out)

    def _store(self, latent: torch.Tensor, key: torch.Tensor, context: StepContext) -> None:
        rows = torch.empty(latent.shape[0], self.heads.layout.head_dim)
        rank = self.heads.kv_rank
        rows[:, :rank] = self.kv_norm.apply(latent.contiguous(), torch.empty(latent.shape))
        rows[:, rank:] = key
        turned = turn_last(rows[:, None], self.rope, context.positions, self.interleaved)
        store_rows(context.pool.keys[self.kv_index], turned[:, 0], context.slots)

    def _queries(self, q: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Queries against latents. Shape: [n, heads, kv_rank + rope_dim]."""
        heads, count = self.heads, q.shape[0]
        apart = q.reshape(count, heads.count, heads.head_dim)
        wide = torch.empty(count, heads.count, heads.layout.head_dim)
        wide[:, :, : heads.kv_rank] = each_head(apart[:, :, : heads.nope_dim], self.key_up)
        wide[:, :, heads.kv_rank :] = apart[:, :, heads.nope_dim :]
        wide = turn_last(wide, self.rope, context.positions, self.interleaved)
        if self.temper is not None:
            wide.mul_(self.temper[context.positions.long(), None, None])
        return wide

    def _attend(self, q: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Shape: q [n, heads, width] -> [n, heads * value_dim]."""
        count, layout = q.shape[0], self.heads.layout
        keys = context.pool.keys[self.kv_index]
        few = self.choice.sees_all(context) if self.choice is not None else None
        mixed = torch.empty(count, layout.heads * layout.head_dim)
        if few is None or bool(few.any()):
            qkv = torch.zeros(count, layout.qkv_cols)
            qkv[:, : mixed.shape[1]] = q.view(count, -1)
            self.kernels.attention(
                qkv,
                layout,
                keys,
                keys,
                context.query_start,
                context.context_len,
                context.page_table,
                self.scale,
                out=mixed,
            )
        found = mixed.view(count, layout.heads, layout.head_dim)
        if few is not None and self.choice is not None and not bool(few.all()):
            rows = (~few).nonzero()[:, 0]
            chosen = self.choice.slots[rows]
            found[rows] = attend_chosen(q[rows], keys, keys, chosen, self.scale)
        values = each_head(found[:, :, : self.heads.kv_rank], self.value_up)
        return values.reshape(count, -1)


def each_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A matrix for every head. Shape: x [n, heads, i]; weight [heads, i, o] -> [n, heads, o]."""
    count, heads, _ = x.shape
    padded = torch.zeros(-(-count // _BLOCK) * _BLOCK, heads, x.shape[2])
    padded[:count] = x
    blocks = padded.view(-1, _BLOCK, heads, x.shape[2])
    parts = [torch.bmm(block.transpose(0, 1), weight) for block in blocks]
    return torch.cat(parts, dim=1).transpose(0, 1)[:count]
