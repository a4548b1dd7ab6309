"""Choosing from a device's best few logits: the same choice as from whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ftengine.protocol import Sampling
from ftengine.sampling.partial import PartialLogits, choose
from ftengine.sampling.penalties import never
from ftengine.sampling.sampler import Draw, sample

KEPT = 16
ROWS = torch.randn(40, 200, generator=torch.Generator().manual_seed(7))


def best_of(logits: torch.Tensor, fetched: list[int]) -> PartialLogits:
    """As a device tells them; `fetched` learns which rows were asked for whole."""
    order = np.argsort(-logits.numpy(), axis=1, kind="stable")[:, :KEPT]

    def fetch(rows: Sequence[int]) -> torch.Tensor:
        fetched.extend(rows)
        return logits[list(rows)]

    return PartialLogits(
        order.astype(np.int32),
        np.take_along_axis(logits.numpy(), order, axis=1),
        torch.logsumexp(logits, dim=1).numpy(),
        fetch,
    )


def draws(**sampling: Any) -> list[Draw]:
    return [Draw(Sampling(**sampling), 3, row, (1, 2), logprobs=2) for row in range(len(ROWS))]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "top_k": 40},
        {"temperature": 0.8, "top_k": 10, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9},
    ],
)
@pytest.mark.parametrize("suppressed", [(), (1 << 30,), tuple(range(0, 200, 40))])
def test_the_best_few_are_enough_also_where_tokens_are_suppressed(
    sampling: dict[str, Any], suppressed: tuple[int, ...]
) -> None:
    fetched: list[int] = []
    asked = draws(**sampling, suppress_tokens=suppressed)
    found, wanted = choose(best_of(ROWS, fetched), asked), sample(ROWS, asked)
    assert fetched == []
    assert [choice.token_id for choice in found] == [choice.token_id for choice in wanted]
    assert not {choice.token_id for choice in found} & set(suppressed)
    for one, other in zip(found, wanted, strict=True):
        assert one.logprob is not None
        assert other.logprob is not None
        assert one.logprob.logprob == pytest.approx(other.logprob.logprob, abs=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.8, "top_k": 0},
        {"temperature": 0.8, "top_k": KEPT + 1},
        {"temperature": 0.0, "logit_bias": ((1, 100.0),)},
        {"temperature": 0.0, "presence_penalty": 1.0},
    ],
)
def test_what_the_best_few_do_not_tell_is_asked_for_whole(sampling: dict[str, Any]) -> None:
    fetched: list[int] = []
    asked = draws(**sampling)
    assert choose(best_of(ROWS, fetched), asked) == sample(ROWS, asked)
    assert fetched == list(range(len(ROWS)))


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 10}])
def test_rows_whose_best_are_suppressed_are_asked_for_whole(sampling: dict[str, Any]) -> None:
    order = np.argsort(-ROWS[0].numpy(), kind="stable")
    left = 0 if sampling["temperature"] == 0 else 9
    fetched: list[int] = []
    asked = draws(**sampling, suppress_tokens=tuple(order[: KEPT - left].tolist()))[:1]
    assert choose(best_of(ROWS[:1], fetched), asked) == sample(ROWS[:1], asked)
    assert fetched == [0]


def test_suppressed_tokens_become_an_array_once_a_request() -> None:
    sampling = Sampling(suppress_tokens=(5, 1, 5))
    assert never(sampling.suppress_tokens) is never(
        Sampling(suppress_tokens=(5, 1, 5)).suppress_tokens
    )
