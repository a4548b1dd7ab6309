"""Norms over the last dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.kernels.dispatch import Kernels


class Norm(Protocol):
    """Any of them."""

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Normalise rows; `out` may be x. Shape: x and out float32 [n, size]."""


class NoNorm:
    """Where a family has none."""

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The rows as they are. Shape: x and out float32 [n, size]."""
        return x if out is x else out.copy_(x)


NO_NORM = NoNorm()


@dataclass(frozen=True)
class LayerNorm:
    """The mean is taken off before. Shape: weight and bias float32 [size]."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float
    kernels: Kernels

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Normalise rows. Shape: x and out float32 [n, size]."""
        # sums of a row in float64, so that they are the same whatever the number of rows
        torch.sub(x, x.double().mean(dim=-1, keepdim=True).float(), out=out)
        self.kernels.rms_norm(out, self.weight, self.eps, out=out)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class RmsNorm:
    """Root mean square. Shape: weight float32 [size]."""

    weight: torch.Tensor
    eps: float
    kernels: Kernels

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Normalise rows. Shape: x and out float32 [n, size]."""
        return self.kernels.rms_norm(x, self.weight, self.eps, out=out)


@dataclass(frozen=True)
class GroupNorm:
    """An RMS norm over each of some equal parts of a row. Shape: weight float32 [width]."""

    part: RmsNorm
    weight: torch.Tensor

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: x and out float32 [n, width]; may be the same."""
        parts = x.reshape(-1, self.part.weight.shape[0])
        found = self.part.apply(parts, torch.empty_like(parts))
        return torch.mul(found.view(x.shape), self.weight, out=out)
