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
        self.experts.add_to(normed, self.ids[: normed.shape[0]], self._weights(normed), out)

    def compute(self, normed: torch.Tensor) -> torch.Tensor:
        """The output by itself, valid until the next call. Shape: float32 [n, hidden]."""
        return self.experts.compute(normed, self.ids[: normed.shape[0]], self._weights(normed))

    def _weights(self, normed: torch.Tensor) -> torch.Tensor:
        """Shape: float32 [n, 1]."""
        count = normed.shape[0]
        if self.gate is None:
            return self.weights[:count]
        found = self.gate.apply(normed, normed.new_empty(count, 1))
        return found.double().sigmoid_().float()
