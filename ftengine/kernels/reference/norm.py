"""Reference RMS norm."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    add_one: bool = False,
) -> torch.Tensor:
    """Normalise rows; with residual, residual += x first and is what is normalised.

    Shape: x, residual, out [..., size]; weight [size].
    """
    if residual is not None:
        x = residual.add_(x)
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    result = x * scale * (1 + weight if add_one else weight)
    return result if out is None else out.copy_(result)
