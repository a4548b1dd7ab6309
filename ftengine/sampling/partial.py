"""Choosing from the best few logits of each row, where a device keeps the rows.

Most requests need no more: greedy ones, and those with a top_k. For penalties, constraints and
filters over the whole vocabulary the rows themselves are fetched. What is chosen is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ftengine.protocol import TokenLogprob
from ftengine.sampling.filters import Candidates
from ftengine.sampling.penalties import changes_logits
from ftengine.sampling.sampler import Choice, Draw, drawn, is_plain, narrowed, sample


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
    if is_plain(draw):
        token = int(ids[0])
    elif draw.allowed is None and _is_top_k(draw, kept):
        few = draw.sampling.top_k
        best = Candidates(ids[:few].astype(np.int64), values[:few])
        token = drawn(narrowed(best, draw.sampling), draw)
    else:
        return None
    if draw.logprobs is None:
        return Choice(token)
    chances = (values - logits.log_sums[row]).tolist()
    tops = tuple(zip(ids.tolist(), chances, strict=True))
    chance = dict(tops)[token]
    return Choice(token, TokenLogprob(token, chance, tops[: draw.logprobs]))


def _is_top_k(draw: Draw, kept: int) -> bool:
    sampling = draw.sampling
    return sampling.temperature > 0 and 0 < sampling.top_k <= kept and not changes_logits(sampling)
