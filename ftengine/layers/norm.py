"""Root-mean-square norm over the last dimension."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.dispatch import Kernels


@dataclass(frozen=True)
class RmsNorm:
    """Shape: weight float32 [size]."""

    weight: torch.Tensor
    eps: float
    kernels: Kernels

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Normalise rows. Shape: x and out float32 [n, size]."""
        return self.kernels.rms_norm(x, self.weight, self.eps, out=out)
