"""Logits to tokens, for a whole batch.

Order of the steps, as in llama.cpp: logit bias and penalties -> top_k -> typical_p -> top_p ->
min_p -> temperature -> one draw. Each filter sees the probabilities renormalised over what the one
before it left, at temperature 1. temperature 0 is the largest logit after bias and penalties,
lowest id on ties. Where a constraint binds, tokens it does not allow are out of the race before
top_k. Reported log probabilities are the model's own: before bias, penalties, constraint and
temperature.

Draws are counter-based (uniform.py): token n of a request is a function of its seed, n and its own
logits, never of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ftengine.errors import EngineError
from ftengine.protocol import Sampling, TokenLogprob
from ftengine.sampling import filters
from ftengine.sampling.filters import Candidates, Floats, Ids
from ftengine.sampling.penalties import adjust, changes_logits
from ftengine.sampling.uniform import uniform


@dataclass(frozen=True)
class Draw:
    """One row to sample from.

    tokens: prompt and what was generated; counter: how many tokens were generated before.
    allowed: the ids a constraint leaves, rising; None = all.
    """

    sampling: Sampling
    seed: int
    counter: int
    tokens: Sequence[int]
    logprobs: int | None = None
    allowed: Ids | None = None


@dataclass(frozen=True)
class Choice:
    """What was chosen for one row."""

    token_id: int
    logprob: TokenLogprob | None = None


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Choice]:
    """Choose one token per row.

    Shape: logits float32 [len(draws), vocab_size], left as they were.
    Raises: EngineError "not_a_number" for a row that holds one.
    """
    if not draws:
        return []
    greedy = [is_plain(draw) for draw in draws]
    best = _largest(logits)
    tokens = [
        best[row] if greedy[row] else _sample_row(logits[row].numpy(), draw)
        for row, draw in enumerate(draws)
    ]
    wanted = [row for row, draw in enumerate(draws) if draw.logprobs is not None]
    if not wanted:
        return [Choice(token) for token in tokens]
    reported = token_logprobs(
        logits[wanted],
        [tokens[row] for row in wanted],
        [draws[row].logprobs or 0 for row in wanted],
    )
    found = dict(zip(wanted, reported, strict=True))
    return [Choice(token, found.get(row)) for row, token in enumerate(tokens)]


def token_logprobs(
    logits: torch.Tensor, tokens: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprob]:
    """Log probabilities of given tokens and of the best alternatives.

    Shape: logits float32 [n, vocab_size]; tokens and num_top [n].
    """
    chances = torch.log_softmax(logits, dim=-1)
    chosen = chances.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    most = min(max(num_top, default=0), logits.shape[-1])
    values, ids = chances.topk(most, dim=-1)
    rows = zip(tokens, chosen, num_top, ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprob(token, chance, tuple(zip(top_ids[:count], top_values[:count], strict=True)))
        for token, chance, count, top_ids, top_values in rows
    ]


def candidates_of(logits: Floats, sampling: Sampling) -> Candidates:
    """Apply every filter to one row whose bias and penalties are applied already."""
    if sampling.top_p < 1 and sampling.top_k == 0 and sampling.typical_p >= 1:
        kept = filters.nucleus_candidates(logits, sampling.top_p)
        return filters.keep_min_p(kept, sampling.min_p) if sampling.min_p > 0 else kept
    return narrowed(filters.all_candidates(logits, sampling.top_k), sampling)


def narrowed(kept: Candidates, sampling: Sampling) -> Candidates:
    """The filters that follow top_k."""
    if sampling.typical_p < 1:
        kept = filters.keep_typical(kept, sampling.typical_p)
    if sampling.top_p < 1:
        kept = filters.keep_top_p(kept, sampling.top_p)
    if sampling.min_p > 0:
        kept = filters.keep_min_p(kept, sampling.min_p)
    return kept


def is_plain(draw: Draw) -> bool:
    """Whether the largest of the model's own logits is what is asked for."""
    if draw.allowed is not None:
        return False
    return draw.sampling.temperature == 0 and not changes_logits(draw.sampling)


def drawn(kept: Candidates, draw: Draw) -> int:
    """The id that the draw hits among candidates."""
    chances = filters.probabilities(kept.logits, draw.sampling.temperature)
    place = uniform(draw.seed, draw.counter)
    index = int(np.searchsorted(np.cumsum(chances), place, side="right"))
    return int(kept.ids[min(index, kept.ids.shape[0] - 1)])


def _largest(logits: torch.Tensor) -> list[int]:
    """The lowest id among each row's largest logits; a NaN counts as largest, so it is found."""
    best = logits.argmax(dim=-1, keepdim=True)
    if logits.gather(1, best).isnan().any():
        raise EngineError(
            "the model computed logits that are not a number; its weights may be damaged: "
            "verify the model",
            code="not_a_number",
        )
    found: list[int] = best[:, 0].tolist()
    return found


def _sample_row(row: Floats, draw: Draw) -> int:
    sampling = draw.sampling
    if changes_logits(sampling):
        row = row.copy()
        adjust(row, sampling, draw.tokens)
    if draw.allowed is not None:
        return int(draw.allowed[_choose(row[draw.allowed], draw)])
    return _choose(row, draw)


def _choose(row: Floats, draw: Draw) -> int:
    """A place in the row."""
    sampling = draw.sampling
    if sampling.temperature == 0:
        return int(row.argmax())
    return drawn(candidates_of(row, sampling), draw)
