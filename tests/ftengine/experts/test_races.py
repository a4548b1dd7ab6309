"""Slots under races: an event that is not waited for, a slot taken too early, errors half way."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ftengine.device.base import Device, Event
from ftengine.device.emulated import EmulatedDevice
from ftengine.errors import CapacityError
from ftengine.experts.gpu import DeviceStore
from ftengine.experts.partials import PairKernel, Routed, merge
from ftengine.experts.policy.residency import Residency
from ftengine.runtime.engine import Engine
from tests.ftengine.parity.tiny_engines import greedy, random_ids

Engines = Callable[..., Engine]
PROMPTS = [random_ids(count, seed=count) for count in (5, 17, 33, 2, 40)]


def store_of(engine: Engine) -> DeviceStore:
    store = engine._loaded.memory.placement.store
    assert isinstance(store, DeviceStore)
    return store


def device_of(engine: Engine) -> Device:
    device = engine._loaded.memory.placement.device
    assert device is not None
    return device


def errors(engine: Engine, tokens: int = 12) -> list[str]:
    results = greedy(engine, PROMPTS, tokens)
    return [item.error.message for item in results if item.error is not None]


@pytest.mark.parametrize(
    ("strategy", "slots"), [("fetch", 7), ("split", 23), ("split", 32), ("auto", 7)]
)
def test_one_removed_wait_is_noticed(
    strategy: str, slots: int, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(device="emulated", strategy=strategy, expert_slots=slots)
    device = device_of(engine)
    real, waits = device.wait, [0]

    def forgetful(event: Event) -> None:
        waits[0] += 1
        if waits[0] != 3:
            real(event)

    monkeypatch.setattr(device, "wait", forgetful)
    assert any("not a number" in message for message in errors(engine))
    assert waits[0] >= 3, "no wait was removed"


def test_every_wait_kept_means_no_error(engines: Engines) -> None:
    assert not errors(engines(device="emulated", strategy="fetch", expert_slots=7))


def test_victim_that_is_in_use_is_noticed(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(device="emulated", strategy="fetch", expert_slots=20)
    want = [item.token_ids for item in greedy(engine, PROMPTS[:1], 24)]
    careful = Residency.admit

    def careless(self: Residency, layer: int, experts: list[int], in_use: object) -> object:
        hits = sorted(in_use)  # type: ignore[call-overload]
        if hits and len(experts) == 1:
            self._slot.move_to_end(self._owner[hits[0]], last=False)
            self._free.clear()
        return careful(self, layer, experts, ())

    monkeypatch.setattr(Residency, "admit", careless)
    results = greedy(engine, PROMPTS[:1], 24)
    assert any(item.error for item in results) or [r.token_ids for r in results] != want


def test_failed_cpu_branch_leaves_nothing_behind(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(device="emulated", strategy="split", expert_slots=23)
    want = [item.token_ids for item in greedy(engine, PROMPTS, 12)]
    branch = store_of(engine)._branch

    def broken(*_: object) -> float:
        raise RuntimeError("the branch broke")

    with monkeypatch.context() as patch:
        patch.setattr(branch, "_run", broken)
        assert any("the branch broke" in message for message in errors(engine))
    assert [item.token_ids for item in greedy(engine, PROMPTS, 12)] == want


def test_failed_prefill_gives_its_buffers_back(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(device="emulated", strategy="fetch", expert_slots=40)
    want = [item.token_ids for item in greedy(engine, PROMPTS, 12)]
    store = store_of(engine)
    assert store.counters.total().streamed > 0
    kernel, calls = store._kernel, [0]
    real = kernel.add_all

    def once_broken(*arguments: object) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("a kernel broke")
        real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "add_all", once_broken)
        assert errors(engine)
    residency = store._residency
    assert residency is not None
    assert residency.num_borrowed == 0
    residency.check()
    assert [item.token_ids for item in greedy(engine, PROMPTS, 12)] == want


def test_skipped_last_layer_of_a_prefill_is_cleaned_up_by_the_next_step(engines: Engines) -> None:
    """Chunks that choose no token never reach the last layer, whose copies are under way."""
    engine = engines(device="emulated", strategy="fetch", expert_slots=40, step_tokens=40)
    plain = engines(step_tokens=40)
    prompt = [random_ids(190, seed=9)]
    want = [item.token_ids for item in greedy(plain, prompt, 12)]
    assert [item.token_ids for item in greedy(engine, prompt, 12)] == want
    assert store_of(engine).counters.layers[0].streamed > 16
    residency = store_of(engine)._residency
    assert residency is not None
    residency.check()


def test_allocation_failure_at_load_is_one_clear_error(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EmulatedDevice, "__init__", _failing(EmulatedDevice.__init__))
    with pytest.raises(CapacityError, match="refused"):
        engines(device="emulated", strategy="split", expert_slots=23)


def _failing(make: Callable[..., None]) -> Callable[..., None]:
    def made(self: EmulatedDevice, *arguments: object) -> None:
        make(self, *arguments)
        self.fail_allocations(1)

    return made


def test_merge_is_the_kernel_s_own_sum(engines: Engines) -> None:
    store = store_of(engines(device="emulated", strategy="split", expert_slots=23))
    bank = store._hosts[0].bank
    torch.manual_seed(0)
    x = torch.randn(9, bank.hidden)
    ids = torch.stack([torch.randperm(bank.num_experts)[:2] for _ in range(9)]).int()
    weights = torch.rand(9, 2)
    start = torch.randn(9, bank.hidden)
    one, two = Routed(x, ids, weights, start.clone()), Routed(x, ids, weights, start.clone())
    kernel: PairKernel = store._kernel
    kernel.add_all(one, ids, bank)
    parts = torch.empty(18, bank.hidden)
    every = range(bank.num_experts)
    kernel.compute(two, {e: e for e in every if e % 3}, bank, parts)
    kernel.compute(two, {e: e for e in every if e % 3 == 0}, bank, parts)
    merge(two, parts)
    assert torch.equal(one.out, two.out)
