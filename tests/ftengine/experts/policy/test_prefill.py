"""Which way a step of many tokens gets its experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftengine.experts.policy.prefill import (
    PrefillFacts,
    buffer_experts,
    choose,
    distinct_experts,
    prefill_costs,
)
from ftengine.experts.policy.rates import Rates

SERVER = Rates(52.7e9, 77.3e9, 24.6e9)
LAPTOP = Rates(11.8e9, 47.5e9, 35.7e9)
FACTS = PrefillFacts(
    num_tokens=8192,
    num_experts=256,
    num_experts_per_tok=8,
    row_bytes=6 << 20,
    num_resident=95,
    free_slots=512,
)


@pytest.mark.parametrize("rates", [SERVER, LAPTOP])
def test_a_long_prompt_streams_and_a_short_turn_does_not(rates: Rates) -> None:
    assert choose(rates, FACTS) == "stream"
    assert choose(rates, replace(FACTS, num_tokens=20)) != "stream"


def test_without_buffers_nothing_streams() -> None:
    assert choose(SERVER, replace(FACTS, can_stream=False)) in ("decode", "cpu")


def test_without_slots_the_cpu_is_left() -> None:
    assert choose(SERVER, replace(FACTS, can_stream=False, free_slots=0)) == "cpu"


def test_a_resident_model_uses_the_decode_path() -> None:
    assert choose(SERVER, replace(FACTS, num_resident=256)) == "decode"


def test_resident_experts_are_not_streamed_again() -> None:
    cold = prefill_costs(SERVER, replace(FACTS, num_resident=0))
    warm = prefill_costs(SERVER, replace(FACTS, num_resident=128))
    assert warm.stream == pytest.approx(cold.stream / 2, rel=0.05)


@pytest.mark.parametrize("tokens", [1, 5, 64])
def test_distinct_experts_agree_with_counting(tokens: int) -> None:
    # k of E at random, tokens times: the chance of an expert never drawn, by multiplication.
    never = 1.0
    for _ in range(tokens):
        never *= 1 - 8 / 256
    assert distinct_experts(tokens, 256, 8) == pytest.approx(256 * (1 - never))
    assert distinct_experts(1, 256, 8) == pytest.approx(8)


@pytest.mark.parametrize("slots", [0, 7, 100, 1200, 10000])
def test_buffers_leave_three_quarters_of_the_slots(slots: int) -> None:
    assert 2 * buffer_experts(slots, 256) <= slots / 4
    assert buffer_experts(slots, 256) <= 256
