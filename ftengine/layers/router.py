"""Scores to expert ids and weights, in float32."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ftengine.errors import LoadError
from ftengine.kernels.dispatch import RouteSpec
from ftengine.kernels.operands import ROUTE_SCORES
from ftengine.kernels.reference.route import scores_of, weigh
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm


@dataclass(frozen=True)
class RouterGroups:
    """Experts in `count` equal groups; only the `kept` best groups are chosen from.

    by: "top2", the sum of a group's two best, or "max", its best.
    """

    count: int = 1
    kept: int = 1
    by: str = "top2"


NO_GROUPS = RouterGroups()


@dataclass(frozen=True)
class Router:
    """Chooses num_experts_per_tok of num_experts experts for each token.

    score "softmax", "sigmoid" or "sqrt_softplus" over all experts before choosing; normalize
    divides the chosen weights by their sum + epsilon; scale multiplies them. correction float32
    [num_experts] is added to the scores for the choice only. input_norm: of what is scored.
    expert_scale float32 [num_experts]: multiplies the weights of each expert. table int64
    [vocab_size, num_experts_per_tok]: the experts of each token id, which are then not chosen.
    jitter: see RouterSpec.
    """

    linear: Linear
    num_experts: int
    num_experts_per_tok: int
    score: str
    normalize: bool
    scale: float
    correction: torch.Tensor | None = None
    epsilon: float = 0.0
    groups: RouterGroups = NO_GROUPS
    input_norm: RmsNorm | None = None
    expert_scale: torch.Tensor | None = None
    table: torch.Tensor | None = None
    jitter: float = 0.0
    spec: RouteSpec = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.score not in ROUTE_SCORES:
            known = ", ".join(ROUTE_SCORES)
            raise LoadError(f"router score {self.score!r} is not built; built: {known}")
        spec = RouteSpec(
            self.score,
            self.normalize,
            self.scale,
            self.epsilon,
            self.groups.count,
            self.groups.kept,
            self.groups.by,
            self.jitter,
        )
        object.__setattr__(self, "spec", spec)

    def choose(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        token_ids: torch.Tensor | None = None,
        room: torch.Tensor | None = None,
    ) -> None:
        """Shape: x [n, hidden]; written: logits [n, experts], expert_ids int32 [n, k], weights.

        token_ids int64 [n]: needed by a table. room [n, hidden]: for x once it is normalised.
        """
        if self.input_norm is not None:
            x = self.input_norm.apply(x, torch.empty_like(x) if room is None else room)
        self.linear.apply(x, logits)
        if self.table is None:
            self.linear.kernels.route(
                logits, self.spec, expert_ids, weights, self.correction, self.expert_scale
            )
            return
        assert token_ids is not None, "this router chooses by token ids"
        expert_ids.copy_(self.table[token_ids])
        scores = scores_of(logits, self.spec)
        weigh(scores, self.spec, expert_ids, weights, self.expert_scale)
