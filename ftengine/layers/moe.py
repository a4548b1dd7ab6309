"""Router and routed experts of one layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.experts.host import Experts
from ftengine.layers.context import StepBuffers
from ftengine.layers.router import Router


@dataclass(frozen=True)
class Moe:
    """Every token takes its experts' weighted sum."""

    router: Router
    experts: Experts

    def add_to(self, normed: torch.Tensor, stream: torch.Tensor, buffers: StepBuffers) -> None:
        """Shape: normed and stream [n, hidden]; the result is added to stream.

        Only the first n rows of the router buffers are used.
        """
        count = normed.shape[0]
        ids = buffers.expert_ids[:count, : self.router.num_experts_per_tok]
        weights = buffers.expert_weights[:count, : self.router.num_experts_per_tok]
        logits = buffers.router_logits[:count, : self.router.num_experts]
        self.router.choose(normed, logits, ids, weights)
        self.experts.add_to(normed, ids, weights, stream)
