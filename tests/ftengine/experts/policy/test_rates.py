"""Rates and their bounded correction."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftengine.experts.policy.rates import Corrected, Rates

RATES = Rates(11.8e9, 47.5e9, 35.7e9)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.booleans()), max_size=80))
def test_corrections_stay_within_their_bounds(seen: list[tuple[float, float, bool]]) -> None:
    corrected = Corrected(RATES)
    for predicted, observed, busy in seen:
        corrected = corrected.saw_fill(predicted, observed).saw_cpu(predicted, observed, busy)
    for factor in (corrected.link, corrected.host, corrected.host_left):
        assert 0.25 <= factor <= 4.0


def test_link_and_cpu_are_corrected_apart() -> None:
    corrected = Corrected(RATES)
    for _ in range(100):
        corrected = corrected.saw_fill(1.0, 1.0).saw_cpu(1.0, 2.0, link_busy=False)
    assert corrected.link == pytest.approx(1.0)
    assert corrected.host < 0.6
    assert corrected.host_left == pytest.approx(1.0)


def test_a_branch_that_did_not_run_teaches_nothing() -> None:
    assert Corrected(RATES).saw_fill(0.0, 1.0) == Corrected(RATES)
    assert Corrected(RATES).saw_cpu(1.0, 0.0, link_busy=True) == Corrected(RATES)


def test_fill_period_follows_the_ratio_of_rates() -> None:
    assert RATES.fill_period == 6
    assert Rates(50e9, 50e9, 0).fill_period == 2


@pytest.mark.parametrize("name", ["link_bytes_per_s", "host_bytes_per_s", "device_bytes_per_s"])
def test_a_rate_of_zero_is_refused_by_name(name: str) -> None:
    values = {"link_bytes_per_s": 1.0, "host_bytes_per_s": 1.0, "host_left_bytes_per_s": 0.0}
    with pytest.raises(ValueError, match=name):
        Rates(**{**values, name: 0.0})
