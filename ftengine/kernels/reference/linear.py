"""Reference matrix products: panels unpacked, dequantised, multiplied by torch."""

from __future__ import annotations

import torch

from ftengine.kernels.operands import PackedWeight
from ftengine.quant import format_named
from ftengine.quant.panel32 import unpack


def dense_weight(weight: PackedWeight) -> torch.Tensor:
    """The matrix as float32. Shape: [rows, cols]."""
    raw = unpack(weight.fmt, weight.data.numpy().reshape(-1), weight.rows, weight.cols)
    return torch.from_numpy(format_named(weight.fmt).dequantize(raw))


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """out (+)= x @ weight^T + bias. Shape: x [n, cols]; out [n, rows]; bias [rows]."""
    result = x @ dense_weight(weight).T
    if bias is not None:
        result += bias
    if out is None:
        return result
    return out.add_(result) if accumulate else out.copy_(result)


def embed_rows(
    table: torch.Tensor,
    fmt: str,
    cols: int,
    ids: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows of a matrix in its checkpoint format.

    Shape: table uint8 [rows, row_bytes]; ids int64 [n]; out [n, cols].
    """
    values = format_named(fmt).dequantize(table[ids].numpy())
    result = torch.from_numpy(values).view(ids.shape[0], cols)
    return result if out is None else out.copy_(result)
