"""A prompt owes the last layer its keys and values, and no more but for the tokens that choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ftengine.cache.policy.pages import pages_for
from ftengine.runtime.engine import Engine
from ftengine.runtime.runner import lone_sequence
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.sequence import Sequence
from tests.ftengine.parity.tiny_engines import load_engine, make_tiny, random_ids

FAMILIES = ("qwen3_moe", "qwen3_next", "mimo_v2_flash")
OTHERS = ("gpt_oss", "gemma3", "olmoe", "llama4", "cohere2_moe", "minimax_m3", "deepseek_v3")
ALL = (*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS))


def sequence(number: int, count: int) -> Sequence:
    """A text with pages of its own."""
    found = lone_sequence(list(random_ids(count, seed=number)))
    pages = pages_for(count)
    found.pages = list(range(number * 8, number * 8 + pages))
    found.state_slot = number
    return found


def rows_of_last_products(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each product that is added to the stream."""
    kernels = engine.runner._decoder.head.kernels
    seen: list[int] = []
    linear = type(kernels).linear

    def counted(self: Any, x: torch.Tensor, *args: Any, **more: Any) -> torch.Tensor:
        if more.get("accumulate"):
            seen.append(x.shape[0])
        return linear(self, x, *args, **more)

    monkeypatch.setattr(type(kernels), "linear", counted)
    return seen


@pytest.mark.parametrize("family", ALL)
def test_logits_are_those_of_a_step_that_computes_every_row(family: str, tmp_path: Path) -> None:
    engine = load_engine(make_tiny(family, tmp_path)[1])
    first, second, third = sequence(0, 70), sequence(1, 33), sequence(2, 21)
    expected = [engine.runner.logits(text.tokens)[-1] for text in (first, second)]
    engine.runner.run(Batch((Work(first, 0, 40, samples=False),)))
    works = (
        Work(third, 0, 21, samples=False),
        Work(first, 40, 30, samples=True),
        Work(second, 0, 33, samples=True),
    )
    got = engine.runner.run(Batch(works))
    assert torch.equal(got, torch.stack(expected))


def test_rows_that_choose_nothing_are_not_computed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = len(engine.runner._decoder.layers)
    seen = rows_of_last_products(engine, monkeypatch)
    text = sequence(0, 60)
    engine.runner.run(Batch((Work(text, 0, 40, samples=False),)))
    assert seen == [40] * (layers - 1)
    seen.clear()
    engine.runner.run(Batch((Work(text, 40, 20, samples=True),)))
    assert seen == [20] * (layers - 1) + [1]
