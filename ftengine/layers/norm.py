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


@dataclass(frozen=True)
class NoNorm:
    """Where a family has none."""

    kernels: Kernels

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The rows as they are. Shape: x and out float32 [n, size]."""
        return x if out is x else self.kernels.add_rows(x, out, accumulate=False)


@dataclass(frozen=True)
class LayerNorm:
    """The mean is taken off before. Shape: weight and bias float32 [size]."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    eps: float
    kernels: Kernels

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Normalise rows. Shape: x and out float32 [n, size]."""
        self.kernels.centre_rows(x, out)
        self.kernels.rms_norm(out, self.weight, self.eps, out=out)
        if self.bias is not None:
            self.kernels.add_rows(out, out, accumulate=False, bias=self.bias)
        return out


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
    """An RMS norm over each of `groups` equal parts of a row. Shape: weight float32 [width]."""

    weight: torch.Tensor
    groups: int
    eps: float
    kernels: Kernels

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: x and out float32 [n, width]; may be the same."""
        return self.kernels.group_norm(x, self.weight, self.groups, self.eps, out)
