"""The executor teaches the planner: virtual seconds on the emulated device, measured ones else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ftengine.device.machine import Machine, profile_names, read_machine
from ftengine.experts.gpu import DeviceStore
from ftengine.experts.policy.planner import Planner, Split
from ftengine.experts.timing import BranchTimes, VirtualTime, WallTime, rates_of
from ftengine.runtime import placement
from ftengine.runtime.engine import Engine
from tests.ftengine.experts.test_races import store_of
from tests.ftengine.parity.tiny_engines import greedy, random_ids

Engines = Callable[..., Engine]
PROMPTS = [random_ids(count, seed=count) for count in (5, 17, 3)]
REAL = replace(placement.EMULATED_MACHINE, link_bytes_per_s=20e9, host_bytes_per_s=18e9)
REAL = replace(REAL, host_left_bytes_per_s=9e9)


def decode(engines: Engines, told: Machine, monkeypatch: pytest.MonkeyPatch) -> DeviceStore:
    """Run an engine under `auto` on the machine REAL whose planner starts from `told`."""
    with monkeypatch.context() as patch:
        patch.setattr(placement, "EMULATED_MACHINE", REAL)
        patch.setattr(placement, "rates_of", lambda _: rates_of(told))
        engine = engines(device="emulated", strategy="auto", expert_slots=12)
    want = [item.token_ids for item in greedy(engines(), PROMPTS, 40)]
    assert [item.token_ids for item in greedy(engine, PROMPTS, 40)] == want
    return store_of(engine)


@pytest.mark.parametrize(("link", "host"), [(1.4, 0.7), (0.7, 1.4), (1.4, 1.4)])
def test_misjudged_machine_is_corrected_while_tokens_are_made(
    link: float, host: float, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = replace(
        REAL,
        link_bytes_per_s=REAL.link_bytes_per_s * link,
        host_bytes_per_s=REAL.host_bytes_per_s * host,
        host_left_bytes_per_s=REAL.host_left_bytes_per_s * host,
    )
    store = decode(engines, told, monkeypatch)
    assert store.planner is not None
    found = store.planner.rates
    assert found.link_bytes_per_s == pytest.approx(REAL.link_bytes_per_s, rel=0.05)
    # the CPU's seconds beside the link are of both its rates, so this one is found less exactly
    assert found.host_left_bytes_per_s == pytest.approx(REAL.host_left_bytes_per_s, rel=0.2)
    assert isinstance(store.timing, VirtualTime)
    assert store.timing.total_s > 0


def test_machine_that_is_judged_right_stays_so(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = decode(engines, REAL, monkeypatch)
    assert store.planner is not None
    found, real = store.planner.rates, rates_of(REAL)
    assert found.link_bytes_per_s == pytest.approx(real.link_bytes_per_s, rel=0.01)
    assert found.host_bytes_per_s == pytest.approx(real.host_bytes_per_s, rel=0.01)
    assert found.host_left_bytes_per_s == pytest.approx(real.host_left_bytes_per_s, rel=0.01)


def test_engine_is_told_of_every_narrow_layer_and_of_no_wide_one(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(device="emulated", strategy="auto", expert_slots=12)
    seen: list[tuple[int, Split, float, float]] = []
    decided: list[tuple[int, int, Split]] = []
    divide = Planner.split

    def noted(
        self: Planner, layer: int, misses: int, tokens: int, *rest: int, **named: Any
    ) -> Split:
        split = divide(self, layer, misses, tokens, *rest, **named)
        decided.append((layer, tokens, split))
        return split

    monkeypatch.setattr(Planner, "split", noted)
    monkeypatch.setattr(Planner, "observe", lambda _, *told: seen.append(told))
    greedy(engine, PROMPTS[1:2], 12)
    assert {tokens for _, tokens, _ in decided} == {17, 1}
    narrow = [(layer, split) for layer, tokens, split in decided if tokens == 1]
    assert [(layer, split) for layer, split, *_ in seen] == [
        (layer, split) for layer, split in narrow if split != Split(0, 0)
    ]
    assert any(split.fills and split.on_cpu for _, split, *_ in seen)
    for _, split, fill_s, cpu_s in seen:
        assert (fill_s > 0, cpu_s > 0) == (split.fills > 0, split.on_cpu > 0)


@pytest.mark.parametrize("name", profile_names())
@pytest.mark.parametrize("split", [Split(3, 0), Split(0, 3), Split(2, 4)])
def test_virtual_seconds_are_those_of_the_machine(name: str, split: Split) -> None:
    machine, row = read_machine(name), 3 << 20
    told = VirtualTime(machine).seconds(row, 2, split, BranchTimes(123.0, 456.0))
    fill_s = split.fills * (machine.copy_latency_s + row / machine.link_bytes_per_s)
    fill_s += machine.link_latency_s if split.fills else 0.0
    assert told.fill_s == pytest.approx(fill_s)
    if split.on_cpu:
        alone = machine.cpu_latency_s + split.on_cpu * row / machine.host_bytes_per_s
        assert told.cpu_s == pytest.approx(alone) if not split.fills else told.cpu_s > alone
    else:
        assert told.cpu_s == 0


def test_measured_seconds_are_passed_on() -> None:
    measured = BranchTimes(0.25, 0.5)
    assert WallTime().seconds(1, 0, Split(1, 1), measured) == measured
