"""Planner: least estimated time, the fill debt, live correction, leaving what loses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftengine.experts.policy.planner import Estimate, Planner, Split, estimate
from ftengine.experts.policy.rates import Rates
from ftengine.experts.policy.residency import Signs

ROW = 6 << 20
LAPTOP = Rates(11.8e9, 47.5e9, 35.7e9)
DESKTOP = Rates(49.0e9, 53.8e9, 4.8e9)

RATES = st.builds(
    Rates,
    link_bytes_per_s=st.floats(5e9, 60e9),
    host_bytes_per_s=st.floats(5e9, 200e9),
    host_left_bytes_per_s=st.floats(0, 100e9),
    link_latency_s=st.floats(0, 1e-4),
    copy_latency_s=st.floats(0, 2e-5),
    cpu_latency_s=st.floats(0, 1e-4),
)


def integrate(rates: Rates, fills: int, on_cpu: int, steps: int = 20000) -> float:
    """Seconds of a layer by stepping through time: an independent account of the contention."""
    fill_s = 0.0
    if fills:
        fill_s = rates.link_latency_s + fills * (
            rates.copy_latency_s + ROW / rates.link_bytes_per_s
        )
    cpu_s, left = (rates.cpu_latency_s, float(on_cpu * ROW)) if on_cpu else (0.0, 0.0)
    tick = (fill_s + cpu_s + left / rates.host_bytes_per_s) / steps
    while left > 0:
        rate = rates.host_left_bytes_per_s if cpu_s < fill_s else rates.host_bytes_per_s
        left -= rate * tick
        cpu_s += tick
    return max(fill_s + fills * ROW / rates.device_bytes_per_s, cpu_s)


@settings(max_examples=25, deadline=None)
@given(RATES, st.integers(0, 6), st.integers(0, 6))
def test_estimate_agrees_with_stepping_through_time(rates: Rates, fills: int, cpu: int) -> None:
    assert estimate(rates, ROW, fills, cpu).layer_s == pytest.approx(
        integrate(rates, fills, cpu), rel=5e-3, abs=1e-9
    )


@settings(max_examples=200, deadline=None)
@given(RATES, st.integers(0, 12), st.integers(0, 12))
def test_no_other_division_costs_less(rates: Rates, misses: int, most: int) -> None:
    planner = Planner(rates, [ROW], "split")
    worth = planner.fill_worth
    split = planner.split(0, misses, 1, most)
    assert split.fills + split.on_cpu == misses
    assert split.fills <= most
    if planner.counters.owed_fills:
        return
    times = [estimate(rates, ROW, q, misses - q).layer_s for q in range(min(misses, most) + 1)]
    gain = worth * min(times) / max(misses, 1)
    costs = [layer_s - gain * fills for fills, layer_s in enumerate(times)]
    assert costs[split.fills] <= min(costs) + 1e-6 * max(times)


@settings(max_examples=60, deadline=None)
@given(RATES, st.lists(st.integers(1, 3), min_size=1, max_size=60))
def test_every_missing_layer_gets_a_fill_in_time(rates: Rates, misses: list[int]) -> None:
    planner = Planner(rates, [ROW], "auto")
    without = 0
    for count in misses:
        split = planner.split(0, count, 1, 8, signs=Signs(0, 9, False, count))
        without = 0 if split.fills else without + 1
        assert without < rates.fill_period


def test_debt_is_kept_per_layer() -> None:
    planner = Planner(LAPTOP, [ROW, ROW], "split")
    assert planner.split(0, 1, 1, 8).fills == 0, "half a miss saved does not pay for a fill here"
    planner = Planner(LAPTOP, [ROW, ROW], "split")
    period = LAPTOP.fill_period
    fills = [
        (planner.split(0, 1, 1, 8).fills, planner.split(1, 1, 1, 8).fills) for _ in range(period)
    ]
    assert fills == [(0, 0)] * (period - 1) + [(1, 1)]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("fetch", Split(4, 0)), ("cpu", Split(0, 4)), ("resident", Split(4, 0))],
)
def test_pure_strategies_stay_pure(strategy: str, expected: Split) -> None:
    planner = Planner(LAPTOP, [ROW], strategy)
    assert all(planner.split(0, 4, 1, 8) == expected for _ in range(50))


def test_minimum_fill_is_kept_every_step() -> None:
    planner = Planner(LAPTOP, [ROW], "split", min_fill=1)
    assert all(planner.split(0, 1, 1, 8) == Split(1, 0) for _ in range(20))


def test_unknown_strategy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'fastest' is unknown"):
        Planner(LAPTOP, [ROW], "fastest")


def serve(planner: Planner, truth: Rates, steps: int, misses: int = 6) -> None:
    """Run steps on a machine with other rates than the planner believes."""
    for _ in range(steps):
        split = planner.split(0, misses, 1, 8)
        real = estimate(truth, ROW, split.fills, split.on_cpu)
        planner.observe(0, split, real.fill_s, real.cpu_s)


@pytest.mark.parametrize("error", [(0.8, 1.2), (1.2, 0.8)])
def test_wrong_rates_are_corrected_by_what_is_observed(error: tuple[float, float]) -> None:
    planner = Planner(LAPTOP.with_error(*error), [ROW], "auto")
    serve(planner, LAPTOP, 300, misses=8)
    assert planner.rates.link_bytes_per_s == pytest.approx(LAPTOP.link_bytes_per_s, rel=0.05)


def test_one_wild_observation_moves_the_rates_a_little() -> None:
    planner = Planner(DESKTOP, [ROW], "fetch")
    planner.observe(0, Split(4, 0), fill_s=10.0, cpu_s=0.0)
    assert planner.rates.link_bytes_per_s > 0.9 * DESKTOP.link_bytes_per_s


def test_auto_leaves_mixed_splits_that_measure_slower_and_tries_them_again() -> None:
    planner = Planner(DESKTOP, [ROW], "auto")
    alone = estimate(DESKTOP, ROW, 0, 6).layer_s
    for _ in range(300):
        planner.observe(0, Split(2, 4), fill_s=3 * alone, cpu_s=3 * alone)
    assert planner.mode == "pure"
    assert planner.counters.fallbacks == 1
    for _ in range(1100):
        if planner.mode == "split":
            break
        split = planner.split(0, 6, 1, 8)
        assert split.fills in (0, 1, 6), "all, none, or the one fill that is owed"
        real = estimate(DESKTOP, ROW, split.fills, split.on_cpu)
        planner.observe(0, split, real.fill_s, real.cpu_s)
    assert planner.mode == "split"


@pytest.mark.parametrize("slow", [1.0, 1.3, 3.0])
@pytest.mark.parametrize("rates", [DESKTOP, LAPTOP])
def test_a_split_that_runs_slower_than_told_ends_near_the_better_branch(
    rates: Rates, slow: float
) -> None:
    planner = Planner(rates, [ROW], "auto")
    spent_s = 0.0
    for step in range(1500):
        owed_before = planner.counters.owed_fills
        split = planner.split(0, 8, 1, 8, signs=Signs(0, 1, False, 8))
        real = estimate(rates, ROW, split.fills, split.on_cpu)
        factor = slow if split.fills and split.on_cpu else 1.0
        planner.observe(0, split, real.fill_s * factor, real.cpu_s * factor)
        if step >= 500 and planner.counters.owed_fills == owed_before:
            spent_s += real.layer_s * factor / 8
        elif step >= 500:
            spent_s += min(real.layer_s, estimate(rates, ROW, 0, 8).layer_s) / 8
    pure = min(estimate(rates, ROW, 8, 0).layer_s, estimate(rates, ROW, 0, 8).layer_s)
    assert spent_s * 8 / 1000 <= 1.03 * pure


def test_a_fill_is_worth_what_came_back_less_what_it_evicts() -> None:
    useful, useless, costly, cold = (Planner(LAPTOP, [ROW], "split") for _ in range(4))
    for _ in range(2000):
        useful.split(0, 2, 1, 0, signs=Signs(2, 0, False, 2))
        useless.split(0, 2, 1, 0, signs=Signs(0, 0, False, 2))
        costly.split(0, 2, 1, 0, signs=Signs(2, 2, False, 2))
        cold.split(0, 2, 1, 0, signs=Signs(2, 0, True, 2))
    assert useful.fill_worth > 0.9
    assert useless.fill_worth < 0.05
    assert costly.fill_worth < 0.1
    assert cold.fill_worth > 2.0, "into a free slot a fill saves every later miss of its expert"


@pytest.mark.parametrize("strategy", ["split", "auto"])
def test_misses_that_deserve_their_victims_slot_less_are_left_to_the_cpu(strategy: str) -> None:
    for worthy in range(5):
        planner = Planner(DESKTOP, [ROW], strategy)
        splits = [
            planner.split(0, 4, 1, 8, signs=Signs(4, 0, False, worthy))
            for _ in range(3 * DESKTOP.fill_period)
        ]
        assert max(split.fills for split in splits) == worthy
        assert all(split.fills + split.on_cpu == 4 for split in splits)
    fetch = Planner(DESKTOP, [ROW], "fetch")
    assert fetch.split(0, 4, 1, 8, signs=Signs(4, 0, False, 0)) == Split(4, 0)


def test_estimate_of_nothing_is_nothing() -> None:
    assert estimate(LAPTOP, ROW, 0, 0) == Estimate(0.0, 0.0, 0.0)
