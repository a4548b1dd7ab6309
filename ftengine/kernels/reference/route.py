"""Reference of the router's choice: scores, the best experts, their weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from ftengine.kernels.operands import RouteSpec


def route(
    logits: torch.Tensor,
    spec: RouteSpec,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None = None,
    expert_scale: torch.Tensor | None = None,
) -> None:
    """The best experts of each token, best first, the lower id where two are equal.

    With a bias, score + bias decides and the score alone is the weight; expert_scale multiplies the
    weights of each expert.
    Shape: logits [n, experts]; expert_ids int32 and weights float32 [n, k], written; bias and
    expert_scale [experts].
    """
    if expert_scale is not None or spec.divides_late or not spec.chooses_plainly:
        route_in_steps(route, logits, spec, expert_ids, weights, bias, expert_scale)
        return
    scores = logits.sigmoid() if spec.score == "sigmoid" else logits.softmax(dim=-1)
    keys = logits if bias is None else scores + bias
    ids = keys.sort(dim=-1, descending=True, stable=True).indices[:, : expert_ids.shape[1]]
    values = scores.gather(1, ids)
    if spec.normalize:
        values = values / values.sum(dim=-1, keepdim=True)
    expert_ids.copy_(ids)
    weights.copy_(values * spec.scale)


def route_in_steps(
    plain: Callable[..., None],
    logits: torch.Tensor,
    spec: RouteSpec,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None,
    expert_scale: torch.Tensor | None,
) -> None:
    """What one kernel on the CPU does not choose. plain: `route` for what it does."""
    if spec.jitter:
        _mix_sparsely(logits.double(), spec.jitter, expert_ids, weights)
    elif spec.chooses_plainly and expert_scale is None:
        plain(logits, spec.undivided, expert_ids, weights, bias)
        total = weights.double().sum(dim=1, keepdim=True) + spec.epsilon
        weights.copy_(weights * (spec.scale / total))
    else:
        scores = scores_of(logits, spec)
        keys = hide_groups(scores if bias is None else scores + bias, spec)
        order = keys.sort(dim=-1, descending=True, stable=True)
        expert_ids.copy_(order.indices[:, : expert_ids.shape[1]])
        weigh(scores, spec, expert_ids, weights, expert_scale)


def scores_of(logits: torch.Tensor, spec: RouteSpec) -> torch.Tensor:
    """Shape: float64 as logits, in which few numbers round alike whatever their number."""
    wide = logits.double()
    if spec.score == "sqrt_softplus":
        return F.softplus(wide).sqrt()
    return wide.sigmoid() if spec.score == "sigmoid" else wide.softmax(dim=-1)


def weigh(
    scores: torch.Tensor,
    spec: RouteSpec,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    expert_scale: torch.Tensor | None,
) -> None:
    """The weights of experts that are chosen. Shape: scores float64 [n, experts]; as route."""
    ids = expert_ids.long()
    values = scores.gather(1, ids)
    if spec.normalize:
        values = values / (values.sum(dim=-1, keepdim=True) + spec.epsilon)
    if expert_scale is not None:
        values = values * expert_scale[ids]
    weights.copy_(values * spec.scale)


def hide_groups(keys: torch.Tensor, spec: RouteSpec) -> torch.Tensor:
    """-inf in the groups that are out. Shape: keys [n, experts]."""
    if not spec.grouped:
        return keys
    grouped = keys.view(keys.shape[0], spec.groups, -1)
    best = grouped.topk(2 if spec.group_by == "top2" else 1, dim=-1).values.sum(dim=-1)
    kept = best.sort(dim=-1, descending=True, stable=True).indices[:, : spec.kept_groups]
    out = torch.ones_like(best, dtype=torch.bool).scatter_(1, kept, False)
    return grouped.masked_fill(out[:, :, None], float("-inf")).view_as(keys)


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
