"""The router's choice: scores, the best experts, their weights. Reference: route.py."""

from __future__ import annotations

import triton
import triton.language as tl

from ftengine.kernels.triton.recurrent import softplus


@triton.jit
def scores_of(logit: tl.tensor, SCORE: tl.constexpr) -> tl.tensor:
    """What is made of the logits. Shape: [experts], -inf beyond them."""
    if SCORE == "sigmoid":
        scores = 1.0 / (1.0 + tl.exp(-logit))
    elif SCORE == "sqrt_softplus":
        scores = tl.sqrt_rn(softplus(logit))
    else:
        scores = tl.exp(logit - tl.max(logit, 0))
        scores = scores / tl.sum(scores, 0)
    return scores


@triton.jit
def kept_experts(
    keys: tl.tensor,
    group_of: tl.tensor,
    live: tl.tensor,
    groups: tl.tensor,
    kept_groups: tl.tensor,
    GROUPS: tl.constexpr,
    GROUP_BY: tl.constexpr,
    EXPERTS: tl.constexpr,
) -> tl.tensor:
    """Experts of the best groups, the lower group of equals. Shape: all but numbers [experts]."""
    expert, place = tl.arange(0, EXPERTS), tl.arange(0, GROUPS)
    worth = tl.full([GROUPS], -float("inf"), tl.float32)
    for group in range(groups):
        here = live & (group_of == group)
        best = tl.max(tl.where(here, keys, -float("inf")), 0)
        if GROUP_BY == "top2":
            first = tl.min(tl.where(here & (keys == best), expert, EXPERTS - 1), 0)
            here = here & (expert != first)
            best += tl.max(tl.where(here, keys, -float("inf")), 0)
        worth = tl.where(place == group, best, worth)
    kept = live & (expert < 0)
    for _ in range(kept_groups):
        best = tl.max(worth, 0)
        group = tl.min(tl.where(worth == best, place, GROUPS - 1), 0)
        kept = kept | (live & (group_of == group))
        worth = tl.where(place == group, -float("inf"), worth)
    return kept


@triton.jit
def route(
    logits: tl.tensor,
    bias: tl.tensor,
    expert_scale: tl.tensor,
    expert_ids: tl.tensor,
    weights: tl.tensor,
    num_experts: tl.tensor,
    num_chosen: tl.tensor,
    scale: tl.tensor,
    epsilon: tl.tensor,
    jitter: tl.tensor,
    groups: tl.tensor,
    kept_groups: tl.tensor,
    num_tokens: tl.tensor,
    SCORE: tl.constexpr,
    BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    NORMALIZE: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP_BY: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
) -> None:
    """The best experts of one token, best first, the lower id of equals.

    SCORE "sparse": the best expert weighed by a softmax over those near it, then the same among
    the others. Shape: logits [tokens, num_experts]; expert_ids int32, weights float32 [tokens,
    num_chosen]; bias, expert_scale [num_experts]; GROUPS >= groups, 1 where none is out. Grid:
    tokens.
    """
    token = tl.program_id(0)
    expert, place = tl.arange(0, EXPERTS), tl.arange(0, CHOSEN)
    live = expert < num_experts
    logit = tl.load(logits + token * num_experts + expert, mask=live, other=-float("inf"))
    scores = scores_of(logit, SCORE)
    keys = logit
    if BIAS:
        keys = scores + tl.load(bias + expert, mask=live, other=0.0)
    elif GROUPS > 1:
        keys = scores
    waiting = live
    if GROUPS > 1:
        group_of = expert // (num_experts // groups)
        waiting = kept_experts(keys, group_of, live, groups, kept_groups, GROUPS, GROUP_BY, EXPERTS)
    ids = tl.zeros([CHOSEN], tl.int32)
    values = tl.zeros([CHOSEN], tl.float32)
    for index in range(num_chosen):
        best = tl.max(tl.where(waiting, keys, -float("inf")), 0)
        chosen = tl.min(tl.where(waiting & (keys == best), expert, EXPERTS - 1), 0)
        if SCORE == "sparse":
            reach = 2.0 * jitter * tl.maximum(tl.abs(logit), best)
            near = waiting & (best - logit <= reach)
            value = 1.0 / tl.sum(tl.where(near, tl.exp(logit - best), 0.0), 0)
        else:
            value = tl.sum(tl.where(expert == chosen, scores, 0.0), 0)
        ids = tl.where(place == index, chosen, ids)
        values = tl.where(place == index, value, values)
        waiting = waiting & (expert != chosen)
    if NORMALIZE:
        values = values / (tl.sum(values, 0) + epsilon)
    exists = place < num_chosen
    if SCALED:
        values *= tl.load(expert_scale + ids, mask=exists, other=0.0)
    at = token * num_chosen + place
    tl.store(expert_ids + at, ids, mask=exists)
    tl.store(weights + at, values * scale, mask=exists)
