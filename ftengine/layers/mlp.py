"""Dense gated MLP: an expert bank of one expert that every token takes with weight 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.experts.cpu import CpuExperts
from ftengine.layers.context import StepContext
from ftengine.layers.linear import Linear


@dataclass(frozen=True)
class Mlp:
    """Shape: ids int32 zeros and weights float32, both [max_tokens, 1].

    gate: one row; sigmoid(gate x) weighs the MLP's output where there is one, and is written to
    weights then; else these are constants.
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
        weights = self.weights[: normed.shape[0]]
        if self.gate is not None:
            self.gate.apply(normed, weights)
            self.gate.kernels.squash_rows(weights, weights, "sigmoid")
        return weights
