"""Block-sparse attention: small heads choose which blocks of tokens each key head sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.kernels.reference.paged_rows import rows_at, sequences, slots_of, store_rows
from ftengine.layers.context import StepContext
from ftengine.layers.norm import RmsNorm
from ftengine.layers.rotary import RopeTables, turn_first


@dataclass(frozen=True)
class BlockChoice:
    """Blocks of `size` tokens; the top_blocks best, counted by their best token, are kept.

    One small head per key head. kv_index: which pages hold the small keys. The token's own block
    and the ones before it, `local` in all, always win.
    """

    kv_index: int
    num_heads: int
    head_dim: int
    size: int
    top_blocks: int
    local: int
    q_norm: RmsNorm
    k_norm: RmsNorm
    rope: RopeTables

    def choose(
        self, made: torch.Tensor, context: StepContext
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Store the new keys; (rows that do not see everything, the slots they see), None = all do.

        Shape: made [n, (num_heads + 1) * head_dim]; rows int64 [r]; slots int64 [r, num_heads,
        top_blocks * size], -1 = none.
        """
        width = self.num_heads * self.head_dim
        q = self._turned(made[:, :width], self.q_norm, context)
        k = self._turned(made[:, width : width + self.head_dim], self.k_norm, context)
        pool = context.pool.keys[self.kv_index]
        store_rows(pool, k[:, 0], context.slots)
        few = context.positions // self.size >= self.top_blocks
        if not bool(few.any()):
            return None
        found, numbers = [], []
        for index, rows, length in sequences(context):
            chosen = few[rows].nonzero()[:, 0]
            if not chosen.shape[0]:
                continue
            at = chosen + rows.start
            keys = rows_at(pool, slots_of(context, index, length))[:, 0]
            positions = context.positions[at].long()
            blocks = self._blocks(q[at], keys, positions)
            found.append(self._slots(blocks, positions, context.page_table[index]))
            numbers.append(at)
        return torch.cat(numbers), torch.cat(found)

    def _turned(self, rows: torch.Tensor, norm: RmsNorm, context: StepContext) -> torch.Tensor:
        """Shape: rows [n, heads * head_dim] -> [n, heads, head_dim], normed and rotated."""
        apart = rows.reshape(-1, self.head_dim)
        normed = norm.apply(apart, torch.empty_like(apart)).view(rows.shape[0], -1, self.head_dim)
        return turn_first(normed, self.rope, context.positions, False)

    def _blocks(self, q: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Numbers of the kept blocks. Shape: int64 [n, num_heads, top_blocks], ascending."""
        length = keys.shape[0]
        scores = torch.einsum("nhd,td->nht", q.double(), keys.double())
        hidden = torch.arange(length)[None, None, :] > positions[:, None, None]
        scores.masked_fill_(hidden, float("-inf"))
        padding = -length % self.size
        scores = torch.nn.functional.pad(scores, (0, padding), value=float("-inf"))
        best = scores.view(*scores.shape[:2], -1, self.size).amax(dim=-1)
        own = (positions // self.size)[:, None] - torch.arange(self.local)
        places = own.clamp(min=0)[:, None, :].expand(-1, self.num_heads, -1)
        best.scatter_(-1, places, float("inf"))
        return best.topk(self.top_blocks, dim=-1).indices.sort(dim=-1).values

    def _slots(
        self, blocks: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor
    ) -> torch.Tensor:
        tokens = (blocks[..., None] * self.size + torch.arange(self.size)).flatten(2)
        hidden = tokens > positions[:, None, None]
        tokens = tokens.masked_fill(hidden, 0)
        slots = pages[tokens // PAGE_TOKENS].long() * PAGE_TOKENS + tokens % PAGE_TOKENS
        return slots.masked_fill(hidden, -1)
