"""Scores to expert ids and weights, in float32."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ftengine.kernels.dispatch import RouteSpec
from ftengine.layers.linear import Linear


@dataclass(frozen=True)
class Router:
    """Chooses num_experts_per_tok of num_experts experts for each token.

    score "softmax" or "sigmoid" over all experts before choosing; normalize divides the chosen
    weights by their sum + epsilon; scale multiplies them. correction float32 [num_experts] is added
    to the scores for the choice only.
    """

    linear: Linear
    num_experts: int
    num_experts_per_tok: int
    score: str
    normalize: bool
    scale: float
    correction: torch.Tensor | None = None
    epsilon: float = 0.0
    spec: RouteSpec = field(init=False, repr=False)

    def __post_init__(self) -> None:
        late = self.normalize and self.epsilon > 0
        spec = RouteSpec(self.score, self.normalize and not late, 1.0 if late else self.scale)
        object.__setattr__(self, "spec", spec)

    def choose(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
    ) -> None:
        """Shape: x [n, hidden]; written: logits [n, experts], expert_ids int32 [n, k], weights."""
        self.linear.apply(x, logits)
        self.linear.kernels.route(logits, self.spec, expert_ids, weights, self.correction)
        if self.normalize and not self.spec.normalize:
            total = weights.double().sum(dim=1, keepdim=True) + self.epsilon
            weights.copy_(weights * (self.scale / total))
