"""Router and routed experts of one layer, and the MLP that every token takes beside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.experts.host import Experts
from ftengine.layers.context import StepContext
from ftengine.layers.mlp import Mlp
from ftengine.layers.router import Router


@dataclass(frozen=True)
class Moe:
    """Every token takes its experts' weighted sum, and the shared MLP where there is one."""

    router: Router
    experts: Experts
    shared: Mlp | None = None

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Shape: normed and out [n, hidden]; the result is added to out.

        Only the first n rows of the router buffers are used.
        """
        buffers, count = context.buffers, normed.shape[0]
        ids = buffers.expert_ids[:count, : self.router.num_experts_per_tok]
        weights = buffers.expert_weights[:count, : self.router.num_experts_per_tok]
        logits = buffers.router_logits[:count, : self.router.num_experts]
        self.router.choose(normed, logits, ids, weights)
        shared = None if self.shared is None else self.shared.compute
        self.experts.add_to(normed, ids, weights, out, shared)
