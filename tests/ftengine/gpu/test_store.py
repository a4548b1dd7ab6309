"""The store of a real GPU: who computes an expert never shows, whatever way a step takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ftengine.errors import CapacityError, EngineError
from ftengine.gpu import kernel_cache
from ftengine.gpu.graph import StepGraphs, Watch
from ftengine.kernels import abi
from ftengine.kernels.operands import ExpertBank
from tests.ftengine.gpu.fake_driver import FakeGpu
from tests.ftengine.gpu.host_experts import StoreBench
from tests.ftengine.kernels.operand_makers import make_bank

EXPERTS, HIDDEN, INTER, LAYERS = 16, 64, 32, 3
SLOTS = 24


def make_banks(fmt: str = "q8_0", activation: str = "silu") -> list[ExpertBank]:
    """Layers of the same shape and other bytes."""
    first = make_bank(fmt, fmt, EXPERTS, HIDDEN, INTER, activation)
    rolled = [torch.roll(first.data, layer + 1, 0).contiguous() for layer in range(LAYERS - 1)]
    return [first, *(replace(first, data=data) for data in rolled)]


def with_biases(bank: ExpertBank) -> ExpertBank:
    """Every expert's row gets float32 biases behind its matrices."""
    rows, size = bank.data.shape
    count = 2 * bank.inter + bank.hidden
    data = torch.zeros(rows, size + 4 * count, dtype=torch.uint8)
    data[:, :size] = bank.data
    data[:, size:] = torch.randn(rows, count).view(torch.uint8)
    layout = replace(
        bank.layout,
        row_bytes=size + 4 * count,
        gate_up_bias_offset=size,
        down_bias_offset=size + 8 * bank.inter,
    )
    return replace(bank, data=data, layout=layout, fmt_bias="f32")


@pytest.fixture(scope="module")
def banks() -> list[ExpertBank]:
    return make_banks()


@pytest.fixture
def bench(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banks: list[ExpertBank]
) -> Iterator[Callable[..., StoreBench]]:
    """Makes a bench over these banks; closed at the end."""
    monkeypatch.setattr(kernel_cache, "installed_triton", lambda: "3.9.9")
    made: list[StoreBench] = []

    def make(strategy: str, slots: int = SLOTS, **more: Any) -> StoreBench:
        given = {"banks": banks, **more}
        made.append(
            StoreBench(
                gpu, abi.find_library(None), tmp_path, strategy=strategy, slots=slots, **given
            )
        )
        return made[-1]

    yield make
    for item in made:
        item.close()


@pytest.mark.parametrize("strategy", ["fetch", "split", "cpu", "auto", "resident"])
def test_every_strategy_gives_the_cpus_sums(
    gpu: FakeGpu, bench: Callable[..., StoreBench], strategy: str
) -> None:
    """Decode steps with slow streams; slots are few, so that experts come and go."""
    gpu.set("delay_us", 100)
    mine = bench(strategy, EXPERTS * LAYERS if strategy == "resident" else SLOTS)
    if strategy in ("split", "auto"):
        mine.wait_pinned()
    inputs = mine.inputs(3)
    for seed in range(4):
        mine.draw(inputs, seed)
        wanted = mine.expected(inputs)
        mine.step(inputs)
        mine.check(inputs, wanted)
    mine.check_slots()
    total = mine.store.counters.total()
    assert total.hits + total.misses > 0
    assert total.fills + total.on_cpu == total.misses
    assert (total.on_cpu > 0) == (strategy in ("split", "auto", "cpu"))
    assert (total.fills > 0) == (strategy in ("split", "auto", "fetch"))
    assert total.link_bytes == total.fills * mine.banks[0].row_bytes


@pytest.mark.parametrize("strategy", ["fetch", "split"])
def test_a_captured_step_is_an_eager_one(
    gpu: FakeGpu, bench: Callable[..., StoreBench], strategy: str
) -> None:
    """One graph serves steps whose routing, rates and residents differ."""
    gpu.set("delay_us", 50)
    mine = bench(strategy)
    mine.wait_pinned()
    inputs = mine.inputs(3)
    mine.store.prepare([3])
    assert mine.store.can_capture(3)
    assert not mine.store.can_capture(2)
    mine.draw(inputs, 0)
    mine.step(inputs)
    graphs = StepGraphs(
        mine.device.compute,
        lambda _: mine.enqueue(inputs),
        (3,),
        mine.store.hand_off,
        Watch(20.0),
    )
    graphs.capture()
    for seed in range(1, 5):
        mine.draw(inputs, seed)
        wanted = mine.expected(inputs)
        mine.store.begin_step(3, True)
        graphs.run(3)
        mine.store.end_step()
        mine.check(inputs, wanted)
    graphs.close()


def test_the_shared_experts_run_beside_the_cpu_and_are_added_last(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    mine = bench("split")
    mine.wait_pinned()
    inputs, spare = mine.inputs(2), mine.inputs(2)[0].out
    spare.fill_(2.0)
    mine.draw(inputs, 3)
    wanted = [item + np.float32(2.0) for item in mine.expected(inputs)]
    calls: list[int] = []
    gpu.clear_log()

    def shared(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(gpu.log("^launch merge")))
        return spare

    mine.step(inputs, shared=shared)
    mine.check(inputs, wanted)
    assert calls == [0, 1, 2], "once a layer, before that layer's merge"


def test_more_pairs_than_one_admission_holds_are_cut(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    """40 tokens of 2 experts: slices, also where a pool without a CPU has room for few."""
    for strategy, parts in (("split", 2), ("fetch", 4)):
        mine = bench(strategy, 20 if strategy == "fetch" else SLOTS)
        mine.wait_pinned()
        inputs = mine.inputs(40)
        mine.draw(inputs, 5)
        wanted = mine.expected(inputs)
        gpu.clear_log()
        mine.step(inputs)
        mine.check(inputs, wanted)
        assert len(gpu.log("^launch admission")) == parts * LAYERS
        mine.close()


@pytest.mark.parametrize("kind", ["biases", "silu_clamp", "swiglu_clamp"])
def test_experts_that_no_fused_kernel_knows_have_a_cpu_branch(
    gpu: FakeGpu, bench: Callable[..., StoreBench], kind: str
) -> None:
    banks = make_banks("bf16", "silu" if kind == "biases" else kind)
    if kind != "silu_clamp":
        torch.manual_seed(5)
        banks = [with_biases(bank) for bank in banks]
    mine = bench("split", banks=banks)
    mine.wait_pinned()
    inputs = mine.inputs(2)
    for seed in range(2):
        mine.draw(inputs, seed)
        wanted = mine.expected(inputs)
        mine.step(inputs)
        for item, result in zip(inputs, wanted, strict=True):
            np.testing.assert_allclose(item.out.numpy(), result, rtol=1e-5, atol=1e-5)
    assert mine.store.counters.total().on_cpu > 0


def test_a_cpu_branch_that_fails_ends_the_step(
    gpu: FakeGpu, bench: Callable[..., StoreBench], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(5)
    mine = bench("cpu", banks=[with_biases(bank) for bank in make_banks("bf16")])
    inputs = mine.inputs(1)
    mine.draw(inputs, 1)
    mine.played.kernels.linear = None  # type: ignore[method-assign,assignment]
    with pytest.raises(EngineError, match="CPU branch of the step failed with status 1"):
        mine.step(inputs)


def test_banks_that_cannot_be_pinned_are_the_cpus(
    gpu: FakeGpu, bench: Callable[..., StoreBench], banks: list[ExpertBank]
) -> None:
    """Also where the strategy asked for had no CPU branch; and it is said."""
    for strategy in ("split", "fetch"):
        gpu.set("pin_limit", banks[0].data.numel() + (1 << 20))
        gpu.fail("host_register", 1, 99)
        mine = bench(strategy)
        mine.wait_pinned()
        inputs = mine.inputs(2)
        mine.draw(inputs, 2)
        wanted = mine.expected(inputs)
        mine.step(inputs)
        mine.check(inputs, wanted)
        total = mine.store.counters.total()
        assert (total.fills, total.on_cpu) == (0, total.misses)
        assert "the CPU computes them" in mine.store.notes[0]
        assert mine.store.generation == (strategy == "fetch")


def test_until_the_banks_are_pinned_kernels_read_none(
    gpu: FakeGpu, bench: Callable[..., StoreBench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that comes early is the CPU's; later ones fill."""
    mine = bench("split")
    mine.wait_pinned()
    pins = mine.store._pins
    assert pins is not None
    inputs = mine.inputs(2)
    for complete in (False, True):
        monkeypatch.setattr(type(pins), "complete", property(lambda _, said=complete: said))
        mine.draw(inputs, 4)
        wanted = mine.expected(inputs)
        mine.step(inputs)
        mine.check(inputs, wanted)
        assert (mine.store.counters.total().fills > 0) == complete


def test_a_resize_keeps_the_warmest_and_voids_graphs(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    mine = bench("fetch")
    inputs = mine.inputs(3)
    mine.draw(inputs, 1)
    mine.step(inputs)
    before = mine.residents()
    last = {(2, int(expert)) for expert in inputs[2].ids.unique()}
    for slots, kept in ((40, len(before)), (8, 8), (16, 8)):
        generation = mine.store.generation
        mine.store.resize(slots)
        assert mine.store.num_slots == slots
        assert mine.store.generation > generation
        assert len(mine.residents()) == mine.store.num_resident == kept
        mine.check_slots()
    assert last <= set(mine.residents())
    mine.draw(inputs, 2)
    wanted = mine.expected(inputs)
    mine.step(inputs)
    mine.check(inputs, wanted)
    assert mine.store.counters.total().misses > 0


def test_a_resize_without_room_changes_nothing_but_warmth(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    mine = bench("fetch")
    inputs = mine.inputs(2)
    mine.draw(inputs, 1)
    mine.step(inputs)
    foreign = mine.device.driver.allocate(mine.device.free_bytes - (1 << 16))
    with pytest.raises(CapacityError, match="bytes more and has"):
        mine.store.resize(EXPERTS * LAYERS)
    mine.device.driver.free(foreign)
    assert (mine.store.num_slots, mine.store.num_resident) == (SLOTS, 0)
    mine.draw(inputs, 2)
    wanted = mine.expected(inputs)
    mine.step(inputs)
    mine.check(inputs, wanted)


def test_measured_seconds_reach_the_devices_tables(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    """The stand-in is far slower than the rates it was told; eager steps are timed now and then."""
    gpu.set("delay_us", 2000)
    mine = bench("split")
    mine.wait_pinned()
    assert mine.store.planner is not None
    assert mine.store._pool is not None
    told = mine.store.planner.rates
    inputs = mine.inputs(3)
    for seed in range(2):
        assert mine.store.wants_eager
        mine.draw(inputs, seed)
        mine.step(inputs, eager=True)
    assert not mine.store.wants_eager
    rates = mine.store.planner.rates
    assert rates.host_left_bytes_per_s < told.host_left_bytes_per_s
    mine.step(inputs)
    seen = mine.store._pool.tables._views["rates"]
    assert seen[2] == rates.host_left_bytes_per_s
    assert mine.store.num_resident == len(mine.residents()) or mine.store.num_resident > 0


def test_after_an_error_no_slot_is_trusted(gpu: FakeGpu, bench: Callable[..., StoreBench]) -> None:
    mine = bench("fetch")
    inputs = mine.inputs(3)
    mine.draw(inputs, 1)
    mine.step(inputs)
    mine.store.recover()
    assert mine.residents() == {}
    wanted = mine.expected(inputs)
    mine.step(inputs)
    mine.check(inputs, wanted)


def test_experts_without_a_kernel_are_refused_when_they_are_added(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    with pytest.raises(EngineError, match="no GPU kernel reads q6_k weights"):
        bench("fetch", banks=[make_bank("q6_k", "q6_k", 2, 256, 256)])


def test_pinned_and_device_memory_are_exact(
    gpu: FakeGpu, bench: Callable[..., StoreBench], banks: list[ExpertBank]
) -> None:
    """What a store takes beside its slots does not grow with their number."""
    taken = []
    for slots in (8, 40):
        before = gpu.live_bytes
        mine = bench("fetch", slots)
        taken.append(gpu.live_bytes - before - slots * mine.store.slot_bytes)
        mine.wait_pinned()
        assert gpu.pinned_bytes >= sum(bank.data.numel() for bank in banks)
        mine.close()
        assert gpu.live_bytes == before
        assert gpu.pinned_bytes == 0
    assert abs(taken[1] - taken[0]) < 16 * 4096, "each allocation may be moved to a page"
