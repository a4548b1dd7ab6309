"""Scores to expert ids and weights, in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

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

    def choose(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
    ) -> None:
        """Shape: x [n, hidden]; written: logits [n, experts], expert_ids int32 [n, k], weights."""
        self.linear.apply(x, logits)
        chances = logits.sigmoid() if self.score == "sigmoid" else logits.softmax(dim=-1)
        values, ids = chances.topk(self.num_experts_per_tok, dim=-1)
        if self.normalize:
            values = values / values.sum(dim=-1, keepdim=True)
        if self.scale != 1.0:
            values = values * self.scale
        expert_ids.copy_(ids)
        weights.copy_(values)
