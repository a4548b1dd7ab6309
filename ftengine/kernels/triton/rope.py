"""Norm and rotate q and k, store k and v in their pages: float32, bfloat16 or q8_0 pools.

Device pools of q8_0 keep int8 quants [pages, kv_heads, 16, head_dim] and float16 scales [pages,
kv_heads, 16, head_dim / 32] apart: 34-byte blocks would spoil wide loads. Reference: rope.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

PAGE_TOKENS = tl.constexpr(16)
GROUP = tl.constexpr(32)
"""Elements of a q8_0 scale."""


@triton.jit
def inverse_rms(
    row: tl.tensor, head_dim: tl.tensor, eps: tl.tensor, DIM: tl.constexpr
) -> tl.tensor:
    """1 / rms of one head."""
    at = tl.arange(0, DIM)
    value = tl.load(row + at, mask=at < head_dim, other=0.0)
    return 1.0 / tl.sqrt_rn(tl.sum(value * value, 0) / head_dim + eps)


@triton.jit
def normed(
    row: tl.tensor,
    weight: tl.tensor,
    scale: tl.tensor,
    at: tl.tensor,
    live: tl.tensor,
    NORM: tl.constexpr,
) -> tl.tensor:
    """Elements of one head, times its norm where there is one."""
    value = tl.load(row + at, mask=live, other=0.0)
    if NORM:
        value *= scale * tl.load(weight + at, mask=live, other=0.0)
    return value


@triton.jit
def rotated(
    row: tl.tensor,
    weight: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    half: tl.tensor,
    head_dim: tl.tensor,
    eps: tl.tensor,
    DIM: tl.constexpr,
    NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> tl.tensor:
    """One head after norm and rotation. Shape: -> float32 [DIM]."""
    at = tl.arange(0, DIM)
    live = at < head_dim
    turned = at < 2 * half
    if INTERLEAVED:
        pair, partner = at // 2, at ^ 1
        sign = tl.where(at % 2 == 0, -1.0, 1.0)
    else:
        pair = tl.where(at < half, at, at - half)
        partner = tl.where(at < half, at + half, at - half)
        sign = tl.where(at < half, -1.0, 1.0)
    scale = 1.0
    if NORM:
        scale = inverse_rms(row, head_dim, eps, DIM)
    own = normed(row, weight, scale, at, live, NORM)
    other = normed(row, weight, scale, partner, live & turned, NORM)
    c = tl.load(cos + pair, mask=turned, other=1.0)
    s = tl.load(sin + pair, mask=turned, other=0.0)
    return own * c + sign * other * s


@triton.jit
def store_plain(pool: tl.tensor, at: tl.tensor, value: tl.tensor, live: tl.tensor) -> None:
    """A head's vector in a float pool."""
    tl.store(pool + at, value.to(pool.dtype.element_ty), mask=live)


@triton.jit
def store_q8(
    pool: tl.tensor,
    scales: tl.tensor,
    place: tl.tensor,
    value: tl.tensor,
    head_dim: tl.tensor,
    DIM: tl.constexpr,
) -> None:
    """A head's vector as int8 with a float16 scale for every 32; halves round away from 0."""
    groups = tl.reshape(value, (DIM // GROUP, GROUP))
    scale = tl.max(tl.abs(groups), 1) / 127.0
    inverse = tl.where(scale == 0.0, 0.0, 1.0 / scale)
    scaled = groups * inverse[:, None]
    quants = tl.where(scaled < 0, scaled - 0.5, scaled + 0.5).to(tl.int32)
    at = tl.arange(0, DIM)
    tl.store(
        pool + place * head_dim + at, tl.reshape(quants, (DIM,)).to(tl.int8), mask=at < head_dim
    )
    group = tl.arange(0, DIM // GROUP)
    count = head_dim // GROUP
    tl.store(scales + place * count + group, scale.to(tl.float16), mask=group < count)


@triton.jit
def rope_store(
    qkv: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    slots: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    key_scales: tl.tensor,
    value_scales: tl.tensor,
    q_norm: tl.tensor,
    k_norm: tl.tensor,
    qkv_stride: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    head_dim: tl.tensor,
    half: tl.tensor,
    eps: tl.tensor,
    num_tokens: tl.tensor,
    DIM: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    KV: tl.constexpr,
) -> None:
    """One head of one token: q in place; k and v into the page that slots names (-1: nowhere).

    Shape: qkv float32 [tokens, qkv_stride]; cos, sin [positions, half]; slots int64 [tokens]; keys,
    values [pages, kv_heads, 16, head_dim]. KV: "plain" or "q8_0". Grid: tokens, heads + kv_heads.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    row = qkv + token.to(tl.int64) * qkv_stride + head * head_dim
    position = tl.load(positions + token).to(tl.int64)
    cos += position * half
    sin += position * half
    at = tl.arange(0, DIM)
    live = at < head_dim
    if head < heads:
        turned = rotated(row, q_norm, cos, sin, half, head_dim, eps, DIM, Q_NORM, INTERLEAVED)
        # every warp must have read the head before it is overwritten
        tl.debug_barrier()
        tl.store(row + at, turned, mask=live)
    else:
        slot = tl.load(slots + token)
        if slot >= 0:
            page, index = slot // PAGE_TOKENS, slot % PAGE_TOKENS
            place = (page * kv_heads + head - heads) * PAGE_TOKENS + index
            key = rotated(row, k_norm, cos, sin, half, head_dim, eps, DIM, K_NORM, INTERLEAVED)
            value = tl.load(row + kv_heads * head_dim + at, mask=live, other=0.0)
            if KV == "q8_0":
                store_q8(keys, key_scales, place, key, head_dim, DIM)
                store_q8(values, value_scales, place, value, head_dim, DIM)
            else:
                store_plain(keys, place * head_dim + at, key, live)
                store_plain(values, place * head_dim + at, value, live)
