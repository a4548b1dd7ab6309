"""Scores to expert ids and weights, in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from ftengine.errors import LoadError
from ftengine.kernels.dispatch import RouteSpec
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

    def hide(self, keys: torch.Tensor) -> torch.Tensor:
        """-inf in the groups that are out. Shape: keys [n, experts]."""
        if self.count == self.kept:
            return keys
        grouped = keys.view(keys.shape[0], self.count, -1)
        best = grouped.topk(2 if self.by == "top2" else 1, dim=-1).values.sum(dim=-1)
        kept = best.topk(self.kept, dim=-1).indices
        out = torch.ones_like(best, dtype=torch.bool).scatter_(1, kept, False)
        return grouped.masked_fill(out[:, :, None], float("-inf")).view_as(keys)


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
    spec: RouteSpec | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        late = self.normalize and self.epsilon > 0
        spec = None
        if self._is_plain:
            spec = RouteSpec(self.score, self.normalize and not late, 1.0 if late else self.scale)
        elif self.score not in _SCORES:
            known = ", ".join(_SCORES)
            raise LoadError(f"router score {self.score!r} is not built; built: {known}")
        object.__setattr__(self, "spec", spec)

    @property
    def _is_plain(self) -> bool:
        """Whether the kernels choose."""
        beside = (self.expert_scale, self.table)
        grouped = self.groups.count != self.groups.kept
        if self.jitter:
            return False
        return not grouped and self.score != "sqrt_softplus" and all(t is None for t in beside)

    def choose(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        token_ids: torch.Tensor | None = None,
    ) -> None:
        """Shape: x [n, hidden]; written: logits [n, experts], expert_ids int32 [n, k], weights.

        token_ids int64 [n]: needed by a table.
        """
        if self.input_norm is not None:
            x = self.input_norm.apply(x, torch.empty_like(x))
        self.linear.apply(x, logits)
        if self.spec is None:
            self._choose_here(logits, expert_ids, weights, token_ids)
            return
        self.linear.kernels.route(logits, self.spec, expert_ids, weights, self.correction)
        if self.normalize and not self.spec.normalize:
            total = weights.double().sum(dim=1, keepdim=True) + self.epsilon
            weights.copy_(weights * (self.scale / total))

    def _choose_here(
        self,
        logits: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        token_ids: torch.Tensor | None,
    ) -> None:
        if self.jitter:
            _mix_sparsely(logits.double(), self.jitter, expert_ids, weights)
            return
        scores = _SCORES[self.score](logits.double())
        if self.table is not None:
            assert token_ids is not None, "this router chooses by token ids"
            ids = self.table[token_ids]
        else:
            keys = scores if self.correction is None else scores + self.correction
            order = self.groups.hide(keys).sort(dim=-1, descending=True, stable=True)
            ids = order.indices[:, : self.num_experts_per_tok]
        values = scores.gather(1, ids)
        if self.normalize:
            values = values / (values.sum(dim=-1, keepdim=True) + self.epsilon)
        if self.expert_scale is not None:
            values = values * self.expert_scale[ids]
        expert_ids.copy_(ids)
        weights.copy_(values * self.scale)


def _mix_sparsely(
    logits: torch.Tensor, jitter: float, expert_ids: torch.Tensor, weights: torch.Tensor
) -> None:
    """The best expert, weighed by a softmax over those near it; then the same among the others.

    Shape: logits [n, experts]; written: expert_ids and weights [n, k].
    """
    left = logits.clone()
    for slot in range(expert_ids.shape[1]):
        best, chosen = left.max(dim=-1, keepdim=True)
        distance = (best - logits) / torch.maximum(logits.abs(), best)
        near = left.masked_fill(distance > 2 * jitter, float("-inf"))
        weights[:, slot : slot + 1] = near.softmax(dim=-1).gather(1, chosen)
        expert_ids[:, slot : slot + 1] = chosen
        left.scatter_(1, chosen, float("-inf"))


def _sqrt_softplus(logits: torch.Tensor) -> torch.Tensor:
    return F.softplus(logits).sqrt()


def _softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.softmax(dim=-1)


_SCORES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": _softmax,
    "sigmoid": torch.sigmoid,
    "sqrt_softplus": _sqrt_softplus,
}
