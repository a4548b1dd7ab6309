"""Launches of rows.py: the embedding, and copies and sums of strided rows."""

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
