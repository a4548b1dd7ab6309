"""Reference of the router's choice: scores, the best experts, their weights."""

from __future__ import annotations

import torch

from ftengine.kernels.operands import RouteSpec


def route(
    logits: torch.Tensor,
    spec: RouteSpec,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> None:
    """The best experts of each token, best first, the lower id where two are equal.

    With a bias, score + bias decides and the score alone is the weight.
    Shape: logits [n, experts]; expert_ids int32 and weights float32 [n, k], written; bias
    [experts].
    """
    scores = logits.sigmoid() if spec.score == "sigmoid" else logits.softmax(dim=-1)
    keys = logits if bias is None else scores + bias
    ids = keys.sort(dim=-1, descending=True, stable=True).indices[:, : expert_ids.shape[1]]
    values = scores.gather(1, ids)
    if spec.normalize:
        values = values / values.sum(dim=-1, keepdim=True)
    expert_ids.copy_(ids)
    weights.copy_(values * spec.scale)
