"""Rotation by position of numbers that are read, for kernels that store or compare them at once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def partner_of(
    at: tl.tensor, HALF: tl.constexpr, INTERLEAVED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Of the first 2 HALF numbers: whom each turns with, their pair's number, the sign."""
    if INTERLEAVED:
        partner, pair = at ^ 1, at // 2
        sign = tl.where(at % 2 == 0, -1.0, 1.0)
    else:
        low = at < HALF
        partner, pair = tl.where(low, at + HALF, at - HALF), tl.where(low, at, at - HALF)
        sign = tl.where(low, -1.0, 1.0)
    return partner, pair, sign


@triton.jit
def turn_pair(
    own: tl.tensor,
    other: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    pair: tl.tensor,
    sign: tl.tensor,
    turns: tl.tensor,
) -> tl.tensor:
    """own cos - other sin, the sign as partner_of gives it; what does not turn stays."""
    c = tl.load(cos + pair, mask=turns, other=1.0)
    s = tl.load(sin + pair, mask=turns, other=0.0)
    return own * c + sign * other * s


@triton.jit
def load_turned(
    rows: tl.tensor,
    at: tl.tensor,
    live: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> tl.tensor:
    """Numbers `at` of rows, the first 2 HALF rotated.

    Shape: rows: addresses that broadcast with at; cos, sin [HALF] of the position.
    """
    partner, pair, sign = partner_of(at, HALF, INTERLEAVED)
    turns = at < 2 * HALF
    own = tl.load(rows + at, mask=live, other=0.0)
    other = tl.load(rows + partner, mask=live & turns, other=0.0)
    return turn_pair(own, other, cos, sin, pair, sign, turns)
