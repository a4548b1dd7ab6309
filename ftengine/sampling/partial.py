"""Choosing from the best few logits of each row, where a device keeps the rows.

Most requests need no more: greedy ones, and those with a top_k; suppressed tokens are passed over.
For penalties, constraints and filters over the whole vocabulary the rows themselves are fetched.
What is chosen is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ftengine.protocol import TokenLogprob
from ftengine.sampling.filters import Candidates
from ftengine.sampling.penalties import never, reorders
from ftengine.sampling.sampler import Choice, Draw, drawn, narrowed, sample


@dataclass(frozen=True)
class PartialLogits:
    """Shape: ids int32 and values float32 [rows, kept], best first, lower ids first among equals;
    log_sums float32 [rows], log of the sum of exponentials. fetch: rows -> float32 [n, vocab_size].
    """

    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    log_sums: npt.NDArray[np.float32]
    fetch: Callable[[Sequence[int]], torch.Tensor]

    def __getitem__(self, rows: list[int]) -> PartialLogits:
        """Some of the rows, in this order."""
        return PartialLogits(
            self.ids[rows],
            self.values[rows],
            self.log_sums[rows],
            lambda wanted: self.fetch([rows[row] for row in wanted]),
        )


Logits = torch.Tensor | PartialLogits
"""Of the rows that choose a token."""


def choose(logits: Logits, draws: Sequence[Draw]) -> list[Choice]:
    """Choose one token per row. Raises: EngineError "not_a_number" for a row that holds one."""
    if isinstance(logits, torch.Tensor):
        return sample(logits, draws)
    found = [_from_best(logits, row, draw) for row, draw in enumerate(draws)]
    missing = [row for row, choice in enumerate(found) if choice is None]
    if missing:
        rest = sample(logits.fetch(missing), [draws[row] for row in missing])
        for row, choice in zip(missing, rest, strict=True):
            found[row] = choice
    return [choice for choice in found if choice is not None]


def _from_best(logits: PartialLogits, row: int, draw: Draw) -> Choice | None:
    """The choice, or None where the best few do not tell."""
    ids, values = logits.ids[row], logits.values[row]
    kept = ids.shape[0]
    if np.isnan(values[0]) or (draw.logprobs or 0) > kept:
        return None
    best = _best(logits, row, draw)
    if best is None:
        return None
    token = int(best.ids[0])
    if draw.sampling.temperature > 0:
        token = drawn(narrowed(best, draw.sampling), draw)
    if draw.logprobs is None:
        return Choice(token)
    chances = (values - logits.log_sums[row]).tolist()
    tops = tuple(zip(ids.tolist(), chances, strict=True))
    chance = dict(tops)[token]
    return Choice(token, TokenLogprob(token, chance, tops[: draw.logprobs]))


def _best(logits: PartialLogits, row: int, draw: Draw) -> Candidates | None:
    """All that is in the race after top_k, greedy being a top_k of 1; None where more may be."""
    sampling = draw.sampling
    wanted = sampling.top_k if sampling.temperature > 0 else 1
    if draw.allowed is not None or wanted == 0 or reorders(sampling):
        return None
    ids, values = logits.ids[row], logits.values[row]
    if sampling.suppress_tokens:
        spared = ~np.isin(ids, never(sampling.suppress_tokens))
        ids, values = ids[spared], values[spared]
    if wanted > ids.shape[0]:
        return None
    return Candidates(ids[:wanted].astype(np.int64), values[:wanted])
