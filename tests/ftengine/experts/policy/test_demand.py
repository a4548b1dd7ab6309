"""Counts that fade: recent demands weigh more, however layers are interleaved."""

from __future__ import annotations

import pytest

from ftengine.experts.policy.demand import Demand


def test_a_demand_fades_by_the_steps_of_the_model_not_by_the_number_of_layers() -> None:
    for layers in (1, 48):
        demand = Demand(layers)
        demand.note((0, 3), 7)
        assert demand.of((0, 3), 7) == 1.0
        assert demand.of((0, 3), 7 + 25 * layers) == pytest.approx(0.96**25)
        assert demand.of((0, 4), 7) == demand.of((1, 3), 7) == 0.0


def test_counts_stay_bounded_and_forget() -> None:
    demand = Demand(1)
    for lookup in range(100_000):
        demand.note((0, 0), lookup)
    assert demand.of((0, 0), 100_000) == pytest.approx(0.96 / 0.04, rel=0.01)
    assert demand.of((0, 0), 200_000) < 1e-9
