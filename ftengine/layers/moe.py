"""Router and routed experts of one layer, and the MLP that every token takes beside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.experts.host import Experts
from ftengine.layers.context import StepBuffers, StepContext
from ftengine.layers.linear import Linear
from ftengine.layers.mlp import Mlp
from ftengine.layers.router import Router


@dataclass(frozen=True)
class Latent:
    """From the stream to the narrower width that experts work in, and back."""

    down: Linear
    up: Linear


@dataclass(frozen=True)
class Moe:
    """Every token takes its experts' weighted sum, and the shared MLP where there is one.

    weigh_input: the weight of the one expert multiplies what it is given, not what it gives.
    Experts numbered from first_identity on return their input, 0 = there are none. latent: where
    experts work in another width than the router and the shared MLP.
    """

    router: Router
    experts: Experts
    shared: Mlp | None = None
    first_identity: int = 0
    weigh_input: bool = False
    latent: Latent | None = None

    def add_to(
        self,
        normed: torch.Tensor,
        out: torch.Tensor,
        context: StepContext,
        seen: torch.Tensor | None = None,
    ) -> None:
        """Shape: normed and out [n, hidden]; the result is added to out.

        seen: what the router scores where that is not normed. Only the first n rows of the router
        buffers are used.
        """
        buffers, count = context.buffers, normed.shape[0]
        ids = buffers.expert_ids[:count, : self.router.num_experts_per_tok]
        weights = buffers.expert_weights[:count, : self.router.num_experts_per_tok]
        logits = buffers.router_logits[:count, : self.router.num_experts]
        tokens = None
        if self.router.table is not None and context.token_ids is not None:
            tokens = context.of_rows(context.token_ids, count)
        scored = normed if seen is None else seen
        room = None if self.router.input_norm is None else buffers.room(0, count)
        self.router.choose(scored, logits, ids, weights, tokens, room)
        if self.first_identity:
            self._add_identities(normed, ids, weights, out)
        shared = None if self.shared is None else self.shared.compute
        if self.weigh_input:
            self._add_weighed(normed, ids, weights, out, buffers)
        elif self.latent is not None:
            self._add_latent(self.latent, normed, ids, weights, out, buffers)
        else:
            self.experts.add_to(normed, ids, weights, out, shared)

    def _add_latent(
        self,
        latent: Latent,
        normed: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        buffers: StepBuffers,
    ) -> None:
        """Experts on the narrow input, their sum led back; the shared MLP beside them."""
        narrow, found = (buffers.room(i, normed.shape[0], latent.down.rows) for i in (0, 1))
        latent.down.apply(normed, narrow)
        latent.down.kernels.fill_rows(found, 0.0)
        self.experts.add_to(narrow, ids, weights, found)
        latent.up.add_to(found, out)
        if self.shared is not None:
            self.shared.add_to(normed, out)

    def _add_weighed(
        self,
        normed: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        buffers: StepBuffers,
    ) -> None:
        """One expert per token, its weight on the input."""
        assert ids.shape[1] == 1, "weights on the input are for one expert per token"
        kernels, weighed = self.router.linear.kernels, buffers.room(0, normed.shape[0])
        kernels.gate_rows(normed, weights, weighed)
        kernels.fill_rows(weights, 1.0)

        def shared(_: torch.Tensor) -> torch.Tensor:
            assert self.shared is not None
            return self.shared.compute(normed)

        self.experts.add_to(weighed, ids, weights, out, None if self.shared is None else shared)

    def _add_identities(
        self, normed: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Add the inputs that experts without weights return; others take their place, with 0."""
        passing = ids >= self.first_identity
        share = weights.double().masked_fill(~passing, 0.0).sum(dim=1, keepdim=True).float()
        out.add_(normed * share)
        other = ids.masked_fill(passing, 0).amax(dim=1, keepdim=True)
        ids.copy_(torch.where(passing, other, ids))
        weights.masked_fill_(passing, 0.0)
