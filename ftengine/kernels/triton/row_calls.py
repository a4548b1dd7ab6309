"""Launches of rows.py: the embedding; copies, sums and gates of strided rows."""

from __future__ import annotations

import torch

from ftengine.kernels.triton import builds
from ftengine.kernels.triton.calls import KernelCall


def embed_rows(table: torch.Tensor, fmt: str, ids: torch.Tensor, out: torch.Tensor) -> KernelCall:
    """Shape: table uint8 [rows, row_bytes]; ids int64 [n]; out float32 [n, cols]."""
    return KernelCall(
        builds.embed_rows(fmt),
        {
            "table": table,
            "ids": ids,
            "out": out,
            "row_bytes": table.shape[1],
            "cols": out.shape[1],
            "num_rows": ids.shape[0],
        },
    )


def add_rows(
    source: torch.Tensor,
    target: torch.Tensor,
    bias: torch.Tensor | None = None,
    accumulate: bool = False,
    factor: float = 1.0,
) -> KernelCall:
    """target (+)= factor * source + bias. Shape: source, target float32 [rows, width], rows as far
    apart as their strides say; bias [width].
    """
    return KernelCall(
        builds.add_rows(accumulate, bias is not None),
        {
            "source": source,
            "target": target,
            "bias": bias,
            "source_stride": source.stride(0),
            "target_stride": target.stride(0),
            "width": source.shape[1],
            "factor": factor,
            "num_rows": source.shape[0],
        },
    )


def gate_rows(
    x: torch.Tensor,
    gate: torch.Tensor,
    out: torch.Tensor,
    kind: str,
    index: torch.Tensor | None = None,
) -> KernelCall:
    """out = x * kind(gate). Shape: x, out [rows, width]; gate [rows or 1, part of width], or any
    rows with an index, int32 [rows].
    """
    return KernelCall(
        builds.gate_rows(kind, index is not None),
        {
            "x": x,
            "gate": gate,
            "index": index,
            "out": out,
            "x_stride": x.stride(0),
            "gate_stride": 0 if gate.shape[0] == 1 else gate.stride(0),
            "out_stride": out.stride(0),
            "width": x.shape[1],
            "part": gate.shape[1],
            "num_rows": x.shape[0],
        },
    )


def move_heads(
    x: torch.Tensor, out: torch.Tensor, heads: int, from_dim: int, to_dim: int, turns: int
) -> KernelCall:
    """Shape: x [rows, heads * from_dim]; out [rows, heads * to_dim]; may begin at one address."""
    return KernelCall(
        builds.move_heads(heads * to_dim),
        {
            "x": x,
            "out": out,
            "x_stride": x.stride(0),
            "out_stride": out.stride(0),
            "heads": heads,
            "from_dim": from_dim,
            "to_dim": to_dim,
            "turns": turns,
            "num_rows": x.shape[0],
        },
    )


def squash_rows(
    x: torch.Tensor | None, out: torch.Tensor, kind: str, limit: float = 1.0
) -> KernelCall:
    """out = kind(x). Shape: x (None for "fill"), out [rows, width]."""
    return KernelCall(
        builds.squash_rows(kind),
        {
            "x": x,
            "out": out,
            "x_stride": 0 if x is None else x.stride(0),
            "out_stride": out.stride(0),
            "width": out.shape[1],
            "limit": limit,
            "num_rows": out.shape[0],
        },
    )
