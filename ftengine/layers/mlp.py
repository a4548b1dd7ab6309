"""Dense gated MLP: an expert bank of one expert that every token takes with weight 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.experts.cpu import CpuExperts
from ftengine.layers.context import StepContext
from ftengine.layers.linear import Linear


@dataclass(frozen=True)
class Mlp:
    """Shape: ids int32 zeros and weights float32 ones, both [max_tokens, 1].

    gate: one row; sigmoid(gate x) weighs the MLP's output where there is one.
    """

    experts: CpuExperts
    ids: torch.Tensor
    weights: torch.Tensor
    gate: Linear | None = None

    def add_to(
        self, normed: torch.Tensor, out: torch.Tensor, context: StepContext | None = None
    ) -> None:
        """Shape: normed and out [n, hidden]; the result is added to out."""
        count = normed.shape[0]
        weights = self.weights[:count]
        if self.gate is not None:
            found = self.gate.apply(normed, torch.empty(count, 1))
            weights = found.double().sigmoid_().float()
        self.experts.add_to(normed, self.ids[:count], weights, out)

    def compute(self, normed: torch.Tensor) -> torch.Tensor:
        """The output by itself. Shape: float32 [n, hidden]."""
        out = torch.zeros_like(normed)
        self.add_to(normed, out)
        return out
