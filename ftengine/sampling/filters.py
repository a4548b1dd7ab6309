"""The filters between logits and a choice, one row at a time, numpy only.

Candidates are (ids, logits), both sorted by falling logit, equal logits by rising id. A filter cuts
the tail, except `typical`, which may cut anywhere and keeps the order. At least one stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_HEAD = 1024
"""Sorted first when a filter may need only the top; the rest is sorted only if it is not enough."""


@dataclass(frozen=True)
class Candidates:
    """Tokens still in the race. Shape: ids and logits [n], best first."""

    ids: Ids
    logits: Floats

    def first(self, count: int) -> Candidates:
        """The best `count` of them."""
        return Candidates(self.ids[:count], self.logits[:count])


def all_candidates(logits: Floats, limit: int = 0) -> Candidates:
    """Sort a row. limit > 0: only the best `limit`. Shape: logits [vocab_size]."""
    size = logits.shape[0]
    limit = size if limit <= 0 or limit >= size else limit
    if limit == size:
        order: Ids = np.argsort(-logits, kind="stable")
    else:
        cut = np.partition(logits, size - limit)[size - limit]
        above = np.flatnonzero(logits > cut)
        level = np.flatnonzero(logits == cut)[: limit - above.shape[0]]
        chosen = np.concatenate([above, level])
        chosen.sort()
        order = chosen[np.argsort(-logits[chosen], kind="stable")]
    return Candidates(order, logits[order])


def nucleus_candidates(logits: Floats, top_p: float) -> Candidates:
    """all_candidates followed by top_p, without sorting the whole row where the top suffices."""
    if logits.shape[0] > 4 * _HEAD:
        head = all_candidates(logits, _HEAD)
        weights = np.exp(head.logits.astype(np.float64) - head.logits[0])
        total = float(np.exp(logits.astype(np.float64) - head.logits[0]).sum())
        reached = np.cumsum(weights) / total
        if reached[-1] >= top_p:
            return head.first(int(np.searchsorted(reached, top_p)) + 1)
    return keep_top_p(all_candidates(logits), top_p)


def keep_top_p(candidates: Candidates, top_p: float) -> Candidates:
    """The fewest best candidates whose probabilities reach `top_p`."""
    reached = np.cumsum(probabilities(candidates.logits))
    count = int(np.searchsorted(reached, top_p)) + 1
    return candidates.first(min(count, reached.shape[0]))


def keep_min_p(candidates: Candidates, min_p: float) -> Candidates:
    """Candidates at least `min_p` times as likely as the best one."""
    floor = float(candidates.logits[0]) + float(np.log(min_p))
    count = int((candidates.logits.astype(np.float64) >= floor).sum())
    return candidates.first(max(count, 1))


def keep_typical(candidates: Candidates, typical_p: float) -> Candidates:
    """Candidates whose surprise is nearest to the expected one, until they reach `typical_p`.

    Source: Meister et al., Locally Typical Sampling, 2022.
    """
    chances = probabilities(candidates.logits)
    with np.errstate(divide="ignore", invalid="ignore"):
        surprise = -np.log(chances)
        entropy = float(np.where(chances > 0, chances * surprise, 0.0).sum())
    order = np.argsort(np.abs(surprise - entropy), kind="stable")
    reached = np.cumsum(chances[order])
    count = min(int(np.searchsorted(reached, typical_p)) + 1, order.shape[0])
    kept = np.sort(order[:count])
    return Candidates(candidates.ids[kept], candidates.logits[kept])


def probabilities(logits: Floats, temperature: float = 1.0) -> npt.NDArray[np.float64]:
    """Softmax in float64 of logits whose largest is first. Shape: [n] -> [n]."""
    wide = logits.astype(np.float64)
    weights = np.exp((wide - wide.max()) / temperature)
    result: npt.NDArray[np.float64] = weights / weights.sum()
    return result
