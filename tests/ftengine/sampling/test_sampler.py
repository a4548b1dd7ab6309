"""Whole batches through the sampler: greedy, draws, seeds, log probabilities."""

from __future__ import annotations

import collections
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ftengine.protocol import Sampling
from ftengine.sampling.sampler import Draw, sample, token_logprobs


def rows(count: int, size: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) * 2


def draw(sampling: Sampling, counter: int = 0, seed: int = 1, **more: object) -> Draw:
    return Draw(sampling, seed, counter, tokens=[1, 2, 3], **more)  # type: ignore[arg-type]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.zeros(2, 9)
    logits[0, 4] = logits[0, 7] = 3.0
    assert [choice.token_id for choice in sample(logits, [draw(Sampling())] * 2)] == [4, 0]


def test_greedy_respects_bias_and_penalties() -> None:
    logits = torch.tensor([[1.0, 5.0, 4.0, 3.0]])
    assert sample(logits, [draw(Sampling(logit_bias=((3, 9.0),)))])[0].token_id == 3
    assert sample(logits, [draw(Sampling(repeat_penalty=10.0))])[0].token_id == 0
    assert logits.tolist() == [[1.0, 5.0, 4.0, 3.0]]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7),
        Sampling(temperature=1.5, top_k=5),
        Sampling(temperature=1.0, top_p=0.8),
        Sampling(temperature=1.0, min_p=0.2),
    ],
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    logits = rows(1, 12)
    wide = [float(value) for value in logits[0]]
    order = sorted(range(12), key=lambda i: -wide[i])
    chances = torch.softmax(logits[0].double(), 0).tolist()
    kept = order[: sampling.top_k or 12]
    if sampling.top_p < 1:
        total, cut = 0.0, 0
        while total < sampling.top_p:
            total += chances[kept[cut]]
            cut += 1
        kept = kept[:cut]
    kept = [i for i in kept if chances[i] >= sampling.min_p * max(chances)]
    weights = {i: math.exp(wide[i] / sampling.temperature) for i in kept}
    count = 4000
    found = collections.Counter(
        sample(logits, [draw(sampling, counter)])[0].token_id for counter in range(count)
    )
    assert set(found) <= set(kept)
    chi_square = 0.0
    for token, weight in weights.items():
        expected = count * weight / sum(weights.values())
        chi_square += (found[token] - expected) ** 2 / expected
    assert chi_square < 31.3  # 0.1 % quantile of 11 degrees of freedom, above that of fewer


def test_draw_depends_on_seed_and_counter_but_not_on_the_batch() -> None:
    logits = rows(6)
    draws = [draw(Sampling(temperature=1.0, top_k=20), row, seed=row % 2) for row in range(6)]
    together = [choice.token_id for choice in sample(logits, draws)]
    alone = [sample(logits[row : row + 1], [draws[row]])[0].token_id for row in range(6)]
    assert together == alone
    flat = torch.zeros(1, 1000)
    sampling = Sampling(temperature=1.0)
    seen = {sample(flat, [draw(sampling, 0, seed)])[0].token_id for seed in range(20)}
    assert len(seen) > 15


def test_mixed_batch_reports_logprobs_only_where_asked() -> None:
    logits = rows(3)
    draws = [
        draw(Sampling(), logprobs=2),
        draw(Sampling(temperature=0.5)),
        draw(Sampling(temperature=2.0, logit_bias=((5, 50.0),)), logprobs=0),
    ]
    first, second, third = sample(logits, draws)
    truth = torch.log_softmax(logits.double(), dim=-1)
    assert first.logprob is not None
    assert first.logprob.logprob == pytest.approx(float(truth[0, first.token_id]), abs=1e-5)
    assert [item[0] for item in first.logprob.top] == truth[0].topk(2).indices.tolist()
    assert second.logprob is None
    assert third.token_id == 5
    assert third.logprob is not None
    assert third.logprob.top == ()
    assert third.logprob.logprob == pytest.approx(float(truth[2, 5]), abs=1e-5)


def test_token_logprobs_of_given_tokens() -> None:
    logits = rows(4)
    truth = torch.log_softmax(logits.double(), dim=-1)
    found = token_logprobs(logits, [3, 1, 4, 1], [0, 20, 1, 50])
    for row, (item, token) in enumerate(zip(found, [3, 1, 4, 1], strict=True)):
        assert item.token_id == token
        assert item.logprob == pytest.approx(float(truth[row, token]), abs=1e-5)
    assert [len(item.top) for item in found] == [0, 20, 1, 50]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.0),
        Sampling(temperature=2.0, top_k=3),
        Sampling(temperature=1.0, top_p=0.3, min_p=0.5),
        Sampling(temperature=1.0, typical_p=0.2),
        Sampling(temperature=1.0, logit_bias=((7, 90.0),), repeat_penalty=1.5),
    ],
)
def test_only_allowed_tokens_are_chosen_whatever_the_filters(sampling: Sampling) -> None:
    allowed = np.array([3, 25, 26, 49], np.int64)
    logits = rows(1)
    kept = logits.clone()
    held = [replace(draw(sampling, counter), allowed=allowed) for counter in range(200)]
    found = {sample(logits, [one])[0].token_id for one in held}
    assert found <= set(allowed.tolist())
    assert torch.equal(logits, kept)


def test_constraint_renormalises_what_is_left() -> None:
    allowed = np.array([10, 20, 30], np.int64)
    logits = rows(1)
    chances = torch.softmax(logits[0, allowed].double(), dim=0)
    one = Sampling(temperature=1.0)
    found = collections.Counter(
        sample(logits, [replace(draw(one, counter), allowed=allowed)])[0].token_id
        for counter in range(3000)
    )
    for place, token in enumerate(allowed.tolist()):
        assert found[token] / 3000 == pytest.approx(float(chances[place]), abs=0.04)


def test_logprobs_do_not_know_of_the_constraint() -> None:
    logits = rows(1)
    best = int(logits.argmax())
    allowed = np.array([token for token in range(50) if token != best], np.int64)
    choice = sample(logits, [replace(draw(Sampling(), logprobs=2), allowed=allowed)])[0]
    truth = torch.log_softmax(logits.double(), dim=-1)[0]
    assert choice.token_id == int(truth.topk(2).indices[1])
    assert choice.logprob is not None
    assert choice.logprob.top[0][0] == best
    assert choice.logprob.logprob == pytest.approx(float(truth[choice.token_id]), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("more", [{}, {"typical_p": 0.5}, {"top_p": 0.99}, {"top_k": 5}])
def test_what_is_suppressed_is_never_chosen(temperature: float, more: dict[str, Any]) -> None:
    """Not even with a bias; ids that the model does not have are passed over."""
    sampling = Sampling(
        temperature=temperature,
        logit_bias=((1, 100.0),),
        presence_penalty=-90.0,
        suppress_tokens=(1, 4, 4, 12, 1 << 30),
        **more,
    )
    logits = torch.arange(12.0).expand(300, -1)
    draws = [Draw(sampling, 7, counter, (1, 4)) for counter in range(300)]
    found = {choice.token_id for choice in sample(logits, draws)}
    assert found
    assert not found & {1, 4}


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_where_a_constraint_leaves_only_suppressed_tokens_it_wins(temperature: float) -> None:
    sampling = Sampling(temperature=temperature, typical_p=0.9, suppress_tokens=(1, 4))
    draw = Draw(sampling, 7, 0, (), allowed=np.array([1, 4]))
    assert sample(torch.zeros(1, 12), [draw])[0].token_id in (1, 4)
