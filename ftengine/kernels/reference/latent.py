"""Latent attention and its indexer in torch, with the norm and the attention of a kernel set.

With keys c and a shared rotated key r, score = (W_UK^T q) . c + q_r . r, so attention over latents
is grouped-query attention of one wide key head. Source: DeepSeek-V2, 2024; the indexer:
DeepSeek-V3.2, 2025.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from ftengine.kernels.latent_operands import (
    Chosen,
    IndexHeads,
    LatentHeads,
    LatentWeights,
    StepPages,
    Turn,
)
from ftengine.kernels.reference.paged_rows import (
    attend_chosen,
    best_first,
    rows_at,
    sequences,
    slots_of,
    store_rows,
)
from ftengine.kernels.reference.rope import rotate

_BLOCK = 8
"""Tokens of one batched product: always as many, so that a token's result depends on it alone."""


class TorchLatents:
    """Latent attention for kernel sets on the CPU. Meanings: dispatch.Kernels."""

    rms_norm: Callable[..., torch.Tensor]
    attention: Callable[..., torch.Tensor]

    def latent_store(
        self,
        latent: torch.Tensor,
        key: torch.Tensor,
        weights: LatentWeights,
        turn: Turn,
        positions: torch.Tensor,
        slots: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """Norm the latent, rotate the key, store both. Shape: latent [n, rank]; key [n, rope]."""
        normed = torch.empty(latent.shape)
        self.rms_norm(latent.contiguous(), weights.norm_weight, weights.eps, out=normed)
        turned = _turned(key[:, None], turn, positions)[:, 0]
        store_rows(pool, torch.cat([normed, turned], dim=1), slots)

    def latent_attention(
        self,
        q: torch.Tensor,
        heads: LatentHeads,
        weights: LatentWeights,
        turn: Turn,
        step: StepPages,
        pool: torch.Tensor,
        out: torch.Tensor,
        chosen: Chosen | None = None,
    ) -> None:
        """Attend over latents; tokens that `chosen` keeps something from see what it names.

        Shape: q [n, heads * head_dim]; pool [pages, 1, 16, rank + rope]; out [n, heads * value].
        """
        wide = _wide_queries(q, heads, weights, turn, step.positions)
        few = None if chosen is None else step.positions < chosen.slots.shape[1]
        found = torch.empty(q.shape[0], heads.count, heads.kept)
        if few is None or bool(few.any()):
            self._attend_all(wide, heads, weights.scale, step, pool, found)
        if few is not None and chosen is not None and not bool(few.all()):
            rows = (~few).nonzero()[:, 0]
            slots = chosen.slots[rows][:, None]
            found[rows] = attend_chosen(wide[rows], pool, pool, slots, weights.scale)
        values = each_head(found[:, :, : heads.kv_rank], weights.value_up)
        out.copy_(values.reshape(q.shape[0], -1))

    def _attend_all(
        self,
        wide: torch.Tensor,
        heads: LatentHeads,
        scale: float,
        step: StepPages,
        pool: torch.Tensor,
        found: torch.Tensor,
    ) -> None:
        count, layout = wide.shape[0], heads.layout
        qkv = torch.zeros(count, layout.qkv_cols)
        qkv[:, : layout.heads * layout.head_dim] = wide.view(count, -1)
        self.attention(
            qkv,
            layout,
            pool,
            pool,
            step.query_start,
            step.context_len,
            step.page_table,
            scale,
            out=found.view(count, -1),
        )

    def index_store(
        self,
        key: torch.Tensor,
        index: IndexHeads,
        turn: Turn,
        positions: torch.Tensor,
        slots: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """Norm with mean and bias, rotate the first numbers, store. Shape: key [n, head_dim]."""
        size = (index.head_dim,)
        normed = F.layer_norm(key, size, index.norm_weight, index.norm_bias, index.eps)
        store_rows(pool, _turned(normed[:, None], turn, positions)[:, 0], slots)

    def sees_all(self, step: StepPages, top_k: int) -> bool:
        """Whether no token of the step can be kept from a key."""
        return not bool((step.positions >= top_k).any())

    def index_choose(
        self,
        q: torch.Tensor,
        factors: torch.Tensor,
        index: IndexHeads,
        turn: Turn,
        step: StepPages,
        pool: torch.Tensor,
    ) -> Chosen:
        """I(t, s) = scale * sum over heads of factor relu(q . k_s); the best s of each t.

        Shape: q [n, heads * head_dim]; factors [n, heads]; pool [pages, 1, 16, head_dim].
        """
        count = q.shape[0]
        q = _turned(q.view(count, index.count, index.head_dim), turn, step.positions)
        weights = factors * index.scale
        slots = torch.full((count, index.top_k), -1)
        for number, rows, length in sequences(step):
            places = slots_of(step, number, length)
            scores = index_scores(q[rows], weights[rows], rows_at(pool, places)[:, 0])
            hidden = torch.arange(length)[None, :] > step.positions[rows, None]
            best = best_first(scores.masked_fill_(hidden, float("-inf")), index.top_k)
            slots[rows, : best.shape[1]] = torch.where(best < 0, -1, places[best.clamp(min=0)])
        return Chosen(slots, (step.positions + 1).clamp(max=index.top_k))


def each_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A matrix for every head. Shape: x [n, heads, i]; weight [heads, i, o] -> [n, heads, o]."""
    count, heads, _ = x.shape
    padded = torch.zeros(-(-count // _BLOCK) * _BLOCK, heads, x.shape[2])
    padded[:count] = x
    blocks = padded.view(-1, _BLOCK, heads, x.shape[2])
    parts = [torch.bmm(block.transpose(0, 1), weight) for block in blocks]
    return torch.cat(parts, dim=1).transpose(0, 1)[:count]


def index_scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Shape: q [n, heads, dim]; weights [n, heads]; keys [t, dim] -> [n, t]."""
    dots = torch.relu(q.flatten(0, 1) @ keys.T).view(q.shape[0], q.shape[1], -1)
    return torch.einsum("nht,nh->nt", dots, weights)


def _turned(x: torch.Tensor, turn: Turn, positions: torch.Tensor) -> torch.Tensor:
    """The first numbers of every head rotated. Shape: x [n, heads, dim]."""
    at = positions.long()
    return rotate(x, turn.cos[at], turn.sin[at], turn.interleaved)


def _wide_queries(
    q: torch.Tensor,
    heads: LatentHeads,
    weights: LatentWeights,
    turn: Turn,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Queries against latents. Shape: [n, heads, kv_rank + rope_dim]."""
    apart = q.reshape(q.shape[0], heads.count, heads.head_dim)
    latent = each_head(apart[:, :, : heads.nope_dim], weights.key_up)
    wide = torch.cat([latent, _turned(apart[:, :, heads.nope_dim :], turn, positions)], dim=2)
    if weights.temper is not None:
        wide.mul_(weights.temper[positions.long(), None, None])
    return wide
