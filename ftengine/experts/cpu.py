"""Routed experts computed by the CPU kernels, straight from the host bank."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.dispatch import ExpertBank, Kernels


@dataclass(frozen=True)
class CpuExperts:
    """All experts of one layer on the CPU."""

    bank: ExpertBank
    kernels: Kernels

    def add_to(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Add the weighted sum of each token's experts to `out`, in routing order.

        Shape: x and out float32 [n, hidden]; expert_ids int32 and weights float32 [n, k].
        """
        self.kernels.expert_ffn(x, expert_ids, weights, self.bank, out=out, accumulate=True)
