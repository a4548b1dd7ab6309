"""Rows of paged keys and values as the pools keep them: plain, or int8 with scales (q8_0)."""

from __future__ import annotations

import torch

from ftengine.kernels.operands import KV_GROUP

_LEAST_SCALE = 1e-30
"""Groups below this are zeros; their scale is 0 as float16 anyway."""


def quantized(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest int8, halves away from 0, and the scale of every KV_GROUP numbers.

    Where a number is not finite its scale is NaN.
    Shape: rows float32 [..., dim] -> int8 [..., dim], float16 [..., dim / KV_GROUP].
    """
    groups = _groups(rows)
    finite = groups.isfinite().all(-1)
    scale = groups.abs().amax(-1) / 127.0
    inverse = torch.where(finite & (scale > _LEAST_SCALE), 1.0 / scale, 0.0)
    scaled = torch.where(finite[..., None], groups, 0.0) * inverse[..., None]
    quants = torch.where(scaled < 0, scaled - 0.5, scaled + 0.5).trunc().to(torch.int8)
    kept = scale.masked_fill(~finite, float("nan")).to(torch.float16)
    return quants.flatten(-2), kept


def widened(rows: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """Rows of a pool as float32. Shape: rows [..., dim]; scales [..., dim / KV_GROUP] of int8."""
    if scales is None:
        return rows.float()
    return (_groups(rows.float()) * scales.float()[..., None]).flatten(-2)


def store(
    pool: torch.Tensor,
    scales: torch.Tensor | None,
    page: torch.Tensor,
    place: torch.Tensor,
    rows: torch.Tensor,
) -> None:
    """Keep rows [n, kv_heads, dim] at (page, place), int64 [n] each."""
    if scales is None:
        pool[page, :, place] = rows.to(pool.dtype)
        return
    pool[page, :, place], scales[page, :, place] = quantized(rows)


def _groups(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(*rows.shape[:-1], rows.shape[-1] // KV_GROUP, KV_GROUP)
