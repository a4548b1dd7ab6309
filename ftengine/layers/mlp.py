"""Dense gated MLP: an expert bank of one expert that every token takes with weight 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.experts.cpu import CpuExperts


@dataclass(frozen=True)
class Mlp:
    """Shape: ids int32 zeros and weights float32 ones, both [max_tokens, 1]."""

    experts: CpuExperts
    ids: torch.Tensor
    weights: torch.Tensor

    def add_to(self, normed: torch.Tensor, stream: torch.Tensor) -> None:
        """Shape: normed and stream [n, hidden]; the result is added to stream."""
        count = normed.shape[0]
        self.experts.add_to(normed, self.ids[:count], self.weights[:count], stream)
