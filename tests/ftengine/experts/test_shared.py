"""Shared experts beside the routed ones: their place in time, and the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ftengine.experts.cpu import CountedCpuExperts
from ftengine.experts.gpu import DeviceStore, LayerExperts
from ftengine.experts.host import Shared
from ftengine.experts.partials import Routed
from ftengine.experts.policy.planner import Planner, Split
from ftengine.experts.ways import CPU, DECODE, STREAM, WayChooser
from ftengine.runtime.engine import Engine
from tests.ftengine.experts.conftest import EXPERTS, TOP_K
from tests.ftengine.experts.test_races import store_of

Engines = Callable[..., Engine]


def routed(store: DeviceStore, tokens: int, seed: int, shared: Shared | None = None) -> Routed:
    """Random routing of one layer; out starts as something that must be added to."""
    draw = torch.Generator().manual_seed(seed)
    hidden = store._hosts[0].bank.hidden
    ids = torch.rand(tokens, EXPERTS, generator=draw).argsort(dim=1)[:, :TOP_K]
    return Routed(
        torch.randn(tokens, hidden, generator=draw),
        ids.int().contiguous(),
        torch.rand(tokens, TOP_K, generator=draw),
        torch.randn(tokens, hidden, generator=draw),
        shared,
    )


def noted(into: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        into.append(name)
        return real(*arguments)

    return call


def test_shared_experts_run_between_the_start_of_everything_and_the_wait(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(engines(device="emulated", strategy="split", expert_slots=23))
    order: list[str] = []
    branch, transfer, kernel = store._branch, store._transfer, store._kernel
    monkeypatch.setattr(branch, "start", noted(order, "cpu branch", branch.start))
    monkeypatch.setattr(branch, "finish", noted(order, "cpu finished", branch.finish))
    monkeypatch.setattr(transfer, "start", noted(order, "copies", transfer.start))
    monkeypatch.setattr(transfer, "wait", noted(order, "wait", transfer.wait))
    monkeypatch.setattr(Planner, "split", lambda *_, **__: Split(1, 3))
    monkeypatch.setattr(WayChooser, "way", lambda *_: DECODE)
    draw, hits = routed(store, 2, seed=4), [0]
    ids = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    work = Routed(draw.x, ids, draw.weights, draw.out, noted(order, "shared", lambda x: x * 2))
    real = kernel.compute

    def compute(item: Routed, rows: Any, bank: Any, parts: Any) -> None:
        if bank is store._slots.bank(0):  # type: ignore[union-attr]
            hits[0] += 1
            order.append("device")
        real(item, rows, bank, parts)

    monkeypatch.setattr(kernel, "compute", compute)
    store.run(0, work)
    assert order == ["cpu branch", "copies", "shared", "wait", "device", "cpu finished"]
    assert hits == [1]


@pytest.mark.parametrize(
    ("strategy", "slots", "way"),
    [
        ("fetch", 7, DECODE),  # in passes
        ("fetch", 40, STREAM),
        ("split", 23, DECODE),
        ("split", 23, CPU),
        ("split", 40, STREAM),
        ("auto", 40, DECODE),
    ],
)
def test_sum_with_shared_experts_is_the_same_bits_however_the_routed_ones_ran(
    strategy: str, slots: int, way: str, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(engines(device="emulated", strategy=strategy, expert_slots=slots))
    monkeypatch.setattr(
        WayChooser, "way", lambda chooser, *_: way if chooser.buffer_experts else DECODE
    )
    calls: list[int] = []

    def shared(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape[0])
        return x.flip(1) * 0.25

    for step, tokens in enumerate((1, 9, 0, 3, 1)):
        for layer, host in enumerate(store._hosts):
            work = routed(store, tokens, seed=10 * step + layer, shared=shared)
            want = work.out.clone()
            alone = CountedCpuExperts(host, store._kernel._kernels, store.counters.layers[layer])
            alone.add_to(work.x, work.expert_ids, work.weights, want, shared)
            LayerExperts(store, layer).add_to(
                work.x, work.expert_ids, work.weights, work.out, shared
            )
            assert torch.equal(work.out, want), (step, layer)
    # once here and once in the truth; a step without tokens asks nobody
    assert calls.count(0) == len(store._hosts)
    assert len(calls) == 9 * len(store._hosts)


def test_failing_shared_experts_leave_nothing_in_flight(engines: Engines) -> None:
    store = store_of(engines(device="emulated", strategy="split", expert_slots=23))

    def broken(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the shared expert broke")

    with pytest.raises(RuntimeError, match="shared expert broke"):
        store.run(0, routed(store, 5, seed=1, shared=broken))
    assert store.num_resident == 0
    work = routed(store, 5, seed=1)
    want = work.out.clone()
    bank = store._hosts[0].bank
    store._kernel._kernels.expert_ffn(
        work.x, work.expert_ids, work.weights, bank, out=want, accumulate=True
    )
    store.run(0, work)
    assert torch.equal(work.out, want)
