"""The counter-based generator: reproducible, and flat enough."""

from __future__ import annotations

from ftengine.sampling.uniform import mix, new_seed, uniform


def test_known_values_never_change() -> None:
    # splitmix64's published first output for the state 0x9E3779B97F4A7C15 (seed 0)
    assert mix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
    assert uniform(42, 0) == uniform(42, 0)
    assert uniform(42, 0) != uniform(42, 1)
    assert uniform(42, 0) != uniform(43, 0)


def test_numbers_are_spread_over_the_unit_interval() -> None:
    buckets = [0] * 10
    for seed in range(20):
        for counter in range(500):
            value = uniform(seed, counter)
            assert 0 <= value < 1
            buckets[int(value * 10)] += 1
    expected = 1000
    chi_square = sum((count - expected) ** 2 / expected for count in buckets)
    assert chi_square < 27.9  # 0.1 % quantile of 9 degrees of freedom


def test_negative_and_huge_seeds_work() -> None:
    assert 0 <= uniform(-1, 5) < 1
    assert uniform(1 << 80, 5) == uniform(0, 5)
    assert new_seed() != new_seed()
