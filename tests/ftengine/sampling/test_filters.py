"""Each filter against a naive reading of its definition, and penalties against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ftengine.protocol import Sampling
from ftengine.sampling import filters
from ftengine.sampling.penalties import adjust, changes_logits
from ftengine.sampling.sampler import candidates_of


def logits_of(seed: int, size: int = 60, ties: bool = False) -> filters.Floats:
    values = np.random.default_rng(seed).normal(0, 3, size)
    return (np.round(values) if ties else values).astype(np.float32)


def naive_softmax(values: list[float]) -> list[float]:
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    return [weight / sum(weights) for weight in weights]


def naive_sorted(logits: filters.Floats) -> list[int]:
    return sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))


def naive(logits: filters.Floats, sampling: Sampling) -> list[int]:
    ids = naive_sorted(logits)
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    if sampling.typical_p < 1:
        ids = naive_typical(logits, ids, sampling.typical_p)
    if sampling.top_p < 1:
        chances, total, kept = naive_softmax([float(logits[i]) for i in ids]), 0.0, []
        for token, chance in zip(ids, chances, strict=True):
            kept.append(token)
            total += chance
            if total >= sampling.top_p:
                break
        ids = kept
    if sampling.min_p > 0:
        chances = naive_softmax([float(logits[i]) for i in ids])
        ids = [i for i, c in zip(ids, chances, strict=True) if c >= sampling.min_p * chances[0]]
    return ids


def naive_typical(logits: filters.Floats, ids: list[int], typical_p: float) -> list[int]:
    chances = naive_softmax([float(logits[i]) for i in ids])
    entropy = -sum(chance * math.log(chance) for chance in chances)
    order = sorted(range(len(ids)), key=lambda i: abs(-math.log(chances[i]) - entropy))
    total, kept = 0.0, []
    for index in order:
        kept.append(index)
        total += chances[index]
        if total >= typical_p:
            break
    return [ids[index] for index in sorted(kept)]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(top_k=1),
        Sampling(top_k=7),
        Sampling(top_k=1000),
        Sampling(top_p=0.9),
        Sampling(top_p=0.01),
        Sampling(min_p=0.1),
        Sampling(min_p=1.0),
        Sampling(typical_p=0.5),
        Sampling(top_k=20, typical_p=0.9, top_p=0.8, min_p=0.05),
    ],
)
def test_filters_match_a_naive_reading(seed: int, sampling: Sampling) -> None:
    logits = logits_of(seed)
    assert candidates_of(logits, sampling).ids.tolist() == naive(logits, sampling)


@pytest.mark.parametrize("limit", [1, 2, 5, 17, 59, 60, 0])
def test_ties_keep_the_lowest_ids(limit: int) -> None:
    logits = logits_of(3, ties=True)
    expected = naive_sorted(logits)[: limit or None]
    assert filters.all_candidates(logits, limit).ids.tolist() == expected


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.95, 0.9999])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_short_cut_for_large_vocabularies_changes_nothing(top_p: float, spread: float) -> None:
    logits = (np.random.default_rng(1).normal(0, spread, 9000)).astype(np.float32)
    quick = filters.nucleus_candidates(logits, top_p).ids.tolist()
    slow = filters.keep_top_p(filters.all_candidates(logits), top_p).ids.tolist()
    assert quick == slow


def test_minus_infinity_is_never_a_candidate_of_top_p() -> None:
    logits = np.array([1.0, -np.inf, 0.5, -np.inf], dtype=np.float32)
    assert candidates_of(logits, Sampling(top_p=0.999)).ids.tolist() == [0, 2]


@pytest.mark.parametrize("last_n", [-1, 0, 1, 4, 64])
def test_penalties_match_a_loop(last_n: int) -> None:
    sampling = Sampling(
        repeat_penalty=1.3,
        repeat_last_n=last_n,
        presence_penalty=0.4,
        frequency_penalty=0.25,
        logit_bias=((3, 2.0), (9, -100.0)),
    )
    tokens = [1, 2, 3, 1, 5, 1, 9]
    logits = logits_of(5, 12)
    expected = [float(value) for value in logits]
    expected[3] += 2.0
    expected[9] -= 100.0
    window = tokens if last_n == -1 else tokens[len(tokens) - min(last_n, len(tokens)) :]
    for token in set(window):
        value = expected[token]
        value = value / 1.3 if value > 0 else value * 1.3
        expected[token] = value - window.count(token) * 0.25 - 0.4
    adjust(logits, sampling, tokens)
    assert logits.tolist() == pytest.approx(expected, rel=1e-5)


def test_neutral_settings_change_nothing() -> None:
    assert not changes_logits(Sampling())
    assert not changes_logits(Sampling(repeat_penalty=1.5, repeat_last_n=0))
    assert changes_logits(Sampling(presence_penalty=-0.1))
    assert changes_logits(Sampling(suppress_tokens=(3,)))
