"""Rows in pages, by slot: stored, found again, chosen, and attended to where only some are chosen.

A slot is page * 16 + place. What the paged kernels do is not repeated here.
"""

from __future__ import annotations

import torch

from ftengine.kernels.latent_operands import StepPages
from ftengine.kernels.operands import PAGE_TOKENS

_TOKENS_AT_A_TIME = 8
"""Of sparse attention: bounds the copies of chosen rows."""


def store_rows(pool: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """Shape: pool [pages, heads, 16, width]; rows [n, heads * width]; slots int64 [n]; -1 = no."""
    stored = slots >= 0
    where = slots[stored]
    shaped = rows[stored].view(-1, pool.shape[1], pool.shape[3])
    pool[where // PAGE_TOKENS, :, where % PAGE_TOKENS] = shaped.to(pool.dtype)


def rows_at(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Shape: pool [pages, heads, rows, width]; slots int64 [...] -> float32 [..., heads, width]."""
    per_page = pool.shape[2]
    return pool[slots // per_page, :, slots % per_page].float()


def slots_of(step: StepPages, index: int, length: int) -> torch.Tensor:
    """Slots of the first tokens of the step's sequence number `index`. Shape: int64 [length]."""
    place = torch.arange(length)
    pages = step.page_table[index, place // PAGE_TOKENS].long()
    return pages * PAGE_TOKENS + place % PAGE_TOKENS


def sequences(step: StepPages) -> list[tuple[int, slice, int]]:
    """(number in the step, its rows, its tokens with the new ones) of every sequence."""
    starts = step.query_start.tolist()
    lengths = step.context_len.tolist()
    return [(i, slice(starts[i], starts[i + 1]), length) for i, length in enumerate(lengths)]


def attend_chosen(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of each token to its own choice of slots, -1 = none.

    Shape: q [n, heads, key width]; keys, values [pages, kv_heads, 16, width]; slots int64
    [n, kv_heads or 1, chosen] -> [n, heads, value width].
    """
    parts = []
    for first in range(0, q.shape[0], _TOKENS_AT_A_TIME):
        rows = slice(first, first + _TOKENS_AT_A_TIME)
        parts.append(_attend_some(q[rows], keys, values, slots[rows], scale))
    return torch.cat(parts)


def _attend_some(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, scale: float
) -> torch.Tensor:
    count, heads, _ = q.shape
    kv_heads = keys.shape[1]
    found = slots.expand(count, kv_heads, -1)
    k = _of_each_head(keys, found.clamp(min=0))
    v = k if values is keys else _of_each_head(values, found.clamp(min=0))
    grouped = q.reshape(count * kv_heads, heads // kv_heads, -1)
    scores = torch.bmm(grouped, k.flatten(0, 1).transpose(1, 2)) * scale
    hidden = (found < 0).reshape(count * kv_heads, 1, -1)
    weights = scores.double().masked_fill(hidden, float("-inf")).softmax(dim=-1).float()
    return torch.bmm(weights, v.flatten(0, 1)).view(count, heads, -1)


def _of_each_head(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Shape: slots [n, kv_heads, chosen] -> float32 [n, kv_heads, chosen, width]."""
    heads = torch.arange(pool.shape[1])[:, None]
    return pool[slots // PAGE_TOKENS, heads, slots % PAGE_TOKENS].float()


def best_first(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Places of the best scores in ascending order, -1 for those of -inf. Shape: [n, <= count]."""
    found = scores.topk(min(count, scores.shape[1]), dim=-1)
    places = found.indices.masked_fill(found.values == float("-inf"), scores.shape[1])
    ordered = places.sort(dim=-1).values
    return ordered.masked_fill(ordered == scores.shape[1], -1)
