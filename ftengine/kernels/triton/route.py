"""The router's choice: scores, the best experts, their weights. Reference: route.py."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def route(
    logits: tl.tensor,
    bias: tl.tensor,
    expert_ids: tl.tensor,
    weights: tl.tensor,
    num_experts: tl.tensor,
    num_chosen: tl.tensor,
    scale: tl.tensor,
    num_tokens: tl.tensor,
    SCORE: tl.constexpr,
    BIAS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
) -> None:
    """The best experts of one token, best first, the lower id of equals.

    Shape: logits [tokens, num_experts]; expert_ids int32, weights float32 [tokens, num_chosen].
    Grid: tokens.
    """
    token = tl.program_id(0)
    expert, place = tl.arange(0, EXPERTS), tl.arange(0, CHOSEN)
    live = expert < num_experts
    logit = tl.load(logits + token * num_experts + expert, mask=live, other=-float("inf"))
    if SCORE == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-logit))
    else:
        scores = tl.exp(logit - tl.max(logit, 0))
        scores = scores / tl.sum(scores, 0)
    keys = logit
    if BIAS:
        keys = scores + tl.load(bias + expert, mask=live, other=0.0)
    waiting = live
    ids = tl.zeros([CHOSEN], tl.int32)
    values = tl.zeros([CHOSEN], tl.float32)
    for index in range(num_chosen):
        best = tl.max(tl.where(waiting, keys, -float("inf")), 0)
        chosen = tl.min(tl.where(waiting & (keys == best), expert, EXPERTS - 1), 0)
        value = tl.sum(tl.where(expert == chosen, scores, 0.0), 0)
        ids = tl.where(place == index, chosen, ids)
        values = tl.where(place == index, value, values)
        waiting = waiting & (expert != chosen)
    if NORMALIZE:
        values = values / tl.sum(values, 0)
    at = token * num_chosen + place
    tl.store(expert_ids + at, ids, mask=place < num_chosen)
    tl.store(weights + at, values * scale, mask=place < num_chosen)
