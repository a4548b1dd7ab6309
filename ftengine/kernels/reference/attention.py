"""Reference attention: pages gathered per sequence, one softmax over all keys."""

from __future__ import annotations

import torch

from ftengine.kernels.operands import PAGE_TOKENS, HeadLayout, KvScales
from ftengine.kernels.reference.kv_pages import widened


def gather(
    pool: torch.Tensor, scales: torch.Tensor | None, pages: torch.Tensor, length: int
) -> torch.Tensor:
    """The first `length` tokens of a sequence. Shape: [kv_heads, length, head_dim], float32."""
    count = -(-length // PAGE_TOKENS)
    at = pages[:count].long()
    rows = widened(pool[at], None if scales is None else scales[at])
    return rows.transpose(0, 1).reshape(pool.shape[1], -1, pool.shape[3])[:, :length]


def attention(
    qkv: torch.Tensor,
    heads: HeadLayout,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_start: torch.Tensor,
    context_len: torch.Tensor,
    page_table: torch.Tensor,
    scale: float,
    window: int = 0,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    scales: KvScales | None = None,
) -> torch.Tensor:
    """Causal attention over paged keys. Query i of a sequence stands at context_len - count + i.

    Shape: qkv [n, heads.qkv_cols], q is its first part; query_start int32 [s + 1]; context_len
    int32 [s]; page_table int32 [s, max_pages]; sinks [heads]; out [n, heads * head_dim]. scales: of
    int8 keys and values.
    """
    width = heads.heads * heads.head_dim
    if out is None:
        out = torch.empty(qkv.shape[0], width)
    starts = query_start.tolist()
    for index, length in enumerate(context_len.tolist()):
        rows = slice(starts[index], starts[index + 1])
        count = rows.stop - rows.start
        q = qkv[rows, :width].view(count, heads.heads, heads.head_dim).transpose(0, 1)
        pages = page_table[index]
        k = gather(keys, None if scales is None else scales.keys, pages, length)
        v = gather(values, None if scales is None else scales.values, pages, length)
        per_kv = heads.heads // heads.kv_heads
        k, v = k.repeat_interleave(per_kv, dim=0), v.repeat_interleave(per_kv, dim=0)
        weights = _softmax(q @ k.transpose(1, 2) * scale, count, window, sinks)
        out[rows] = (weights @ v).transpose(0, 1).reshape(count, width)
    return out


def _softmax(
    scores: torch.Tensor, count: int, window: int, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Mask and normalise. Shape: scores [heads, count, length]."""
    length = scores.shape[2]
    position = torch.arange(length - count, length)[:, None]
    key = torch.arange(length)[None, :]
    hidden = key > position
    if window > 0:
        hidden = hidden | (key <= position - window)
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    extra = sinks[:, None, None].expand(-1, count, 1)
    return torch.softmax(torch.cat([scores, extra], dim=-1), dim=-1)[..., :length]
