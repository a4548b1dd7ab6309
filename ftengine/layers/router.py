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
    weights by their sum; scale multiplies them.
    """

    linear: Linear
    num_experts: int
    num_experts_per_tok: int
    score: str
    normalize: bool
    scale: float
    spec: RouteSpec = field(init=False, repr=False)

    def __post_init__(self) -> None:
        spec = RouteSpec(self.score, self.normalize, self.scale)
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
        self.linear.kernels.route(logits, self.spec, expert_ids, weights)
