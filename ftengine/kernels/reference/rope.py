"""Reference rotary embedding and the store into paged pools."""

from __future__ import annotations

import torch

from ftengine.kernels.operands import PAGE_TOKENS, HeadLayout, KvScales
from ftengine.kernels.reference import kv_pages
from ftengine.kernels.reference.norm import rms_norm


def rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> torch.Tensor:
    """Rotate the first dimensions. Shape: x [n, heads, head_dim]; cos, sin [n, rotary_dim / 2]."""
    half = cos.shape[1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    rotated = x.clone()
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        rotated[..., 0 : 2 * half : 2] = first * cos - second * sin
        rotated[..., 1 : 2 * half : 2] = second * cos + first * sin
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
        rotated[..., :half] = first * cos - second * sin
        rotated[..., half : 2 * half] = second * cos + first * sin
    return rotated


def rope_store(
    qkv: torch.Tensor,
    heads: HeadLayout,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
    interleaved: bool = False,
    scales: KvScales | None = None,
) -> None:
    """Normalise (optional) and rotate q and k of qkv; q stays in place, k and v go to the pools.

    Shape: qkv [n, heads.qkv_cols]; cos, sin [max_positions, rotary_dim / 2]; positions int32 [n];
    slots int64 [n], page * 16 + place, -1 stores nothing; keys, values [num_pages, kv_heads, 16,
    head_dim] float32 or bfloat16, or int8 with scales.
    """
    tokens = qkv.shape[0]
    rows = qkv.reshape(tokens, -1, heads.head_dim)
    q = rows[:, : heads.heads]
    k = rows[:, heads.heads : heads.heads + heads.kv_heads]
    v = rows[:, heads.heads + heads.kv_heads :]
    at_cos, at_sin = cos[positions.long()], sin[positions.long()]
    if q_norm is not None:
        q = rms_norm(q, q_norm, eps)
    if k_norm is not None:
        k = rms_norm(k, k_norm, eps)
    qkv[:, : heads.heads * heads.head_dim] = rotate(q, at_cos, at_sin, interleaved).reshape(
        tokens, -1
    )
    stored = slots >= 0
    page, place = slots[stored] // PAGE_TOKENS, slots[stored] % PAGE_TOKENS
    turned = rotate(k, at_cos, at_sin, interleaved)[stored]
    kv_pages.store(keys, None if scales is None else scales.keys, page, place, turned)
    kv_pages.store(values, None if scales is None else scales.values, page, place, v[stored])
