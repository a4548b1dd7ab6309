"""Attention of one shared key head over a window, and over entries that each stand for many tokens.

Keys are values, so the rotation that values carry is taken back from the output. Computed in
float64, so that a token's result is the same whatever else is in the step. Source: DeepSeek-V4,
2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.reference.paged_rows import rows_at, sequences, slots_of, store_rows
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.entries import Entries, EntryChoice, entry_slots
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm
from ftengine.layers.rotary import RopeTables, turn_last

_TOKENS_AT_A_TIME = 32


@dataclass(frozen=True)
class EntryHeads:
    """Units: heads; numbers per head; width of the query latent; tokens."""

    count: int
    head_dim: int
    q_rank: int
    window: int


@dataclass(frozen=True)
class CompressedAttention:
    """One layer. kv_index: which pages hold its keys, one for each token.

    project gives the query latent, the key, and what entries and their choice are made from. out_a:
    one matrix for each group of heads, before `out`. Shape: sinks float64 [heads].
    """

    kv_index: int
    heads: EntryHeads
    project: Linear
    q_norm: RmsNorm
    q_up: Linear
    head_norm: RmsNorm
    kv_norm: RmsNorm
    sinks: torch.Tensor
    scale: float
    rope: RopeTables
    entries: Entries | None
    choice: EntryChoice | None
    out_a: tuple[Linear, ...]
    out: Linear

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Attend and add the result to `out`. Shape: normed, out [n, hidden]."""
        heads, count = self.heads, normed.shape[0]
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        first = heads.q_rank + heads.head_dim
        latent, kv = wide[:, : heads.q_rank], wide[:, heads.q_rank : first]
        latent = self.q_norm.apply(latent.contiguous(), torch.empty(count, heads.q_rank))
        kv = self.kv_norm.apply(kv.contiguous(), torch.empty(count, heads.head_dim))
        kv = turn_last(kv[:, None], self.rope, context.positions, True)[:, 0]
        store_rows(context.pool.keys[self.kv_index], kv, context.slots)
        kept = None
        if self.entries is not None:
            rest = wide[:, first:]
            self.entries.add(rest, context)
            if self.choice is not None:
                kept = self.choice.choose(latent, rest, context)
        attended = self._attend(self._queries(latent, context), kept, context)
        found = turn_last(attended, self.rope, context.positions, True, back=True)
        parts = found.reshape(count, len(self.out_a), -1)
        groups = [
            linear.apply(parts[:, number].contiguous(), torch.empty(count, linear.rows))
            for number, linear in enumerate(self.out_a)
        ]
        self.out.add_to(torch.cat(groups, dim=1), out)

    def _queries(self, latent: torch.Tensor, context: StepContext) -> torch.Tensor:
        count, heads = latent.shape[0], self.heads
        q = self.q_up.apply(latent, torch.empty(count, heads.count * heads.head_dim))
        rows = q.view(-1, heads.head_dim)
        rows = self.head_norm.apply(rows, rows).view(count, heads.count, heads.head_dim)
        return turn_last(rows, self.rope, context.positions, True)

    def _attend(
        self, q: torch.Tensor, kept: list[torch.Tensor] | None, context: StepContext
    ) -> torch.Tensor:
        """Shape: q [n, heads, dim] -> the same; kept: bool [rows, entries] of every sequence."""
        out = torch.empty_like(q)
        pool = context.pool.keys[self.kv_index]
        for index, rows, length in sequences(context):
            positions = context.positions[rows].long()
            first = max(0, length - (rows.stop - rows.start) - self.heads.window + 1)
            keys = rows_at(pool, slots_of(context, index, length)[first:])[:, 0]
            at = torch.arange(first, length)
            ahead = positions[:, None] - at[None, :]
            seen = (ahead >= 0) & (ahead < self.heads.window)
            if self.entries is not None:
                visible = self.entries.visible(positions, length)
                if kept is not None:
                    visible = visible & kept[index]
                more = rows_at(
                    context.pool.keys[self.entries.kv_index],
                    entry_slots(context, index, length, self.entries.ratio),
                )[:, 0]
                keys, seen = torch.cat([keys, more]), torch.cat([seen, visible], dim=1)
            out[rows] = self._mixed(q[rows], keys.double(), seen)
        return out

    def _mixed(self, q: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        parts = []
        for start in range(0, q.shape[0], _TOKENS_AT_A_TIME):
            some = slice(start, start + _TOKENS_AT_A_TIME)
            scores = torch.einsum("nhd,td->nht", q[some].double(), keys) * self.scale
            scores.masked_fill_(~seen[some, None, :], float("-inf"))
            sinks = self.sinks[None, :, None].expand(scores.shape[0], -1, 1)
            weights = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
            parts.append(torch.einsum("nht,td->nhd", weights, keys).float())
        return torch.cat(parts)
