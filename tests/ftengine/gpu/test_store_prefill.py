"""Chunks on a GPU: layers streamed through two buffers, resident experts in place, the wide CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ftengine.experts.ways import CPU
from ftengine.gpu import kernel_cache
from ftengine.gpu.stream import Event, Stream
from ftengine.kernels import abi
from ftengine.kernels.operands import ExpertBank
from tests.ftengine.gpu.fake_driver import FakeGpu
from tests.ftengine.gpu.host_experts import CPU_RATES, Inputs, StoreBench
from tests.ftengine.gpu.host_kernels import play
from tests.ftengine.gpu.test_store import EXPERTS, LAYERS, make_banks

TOKENS = 40
WHOLE = 8 * EXPERTS
"""A pool whose buffers hold a whole layer each; it has more slots than there are experts."""


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

    def make(strategy: str, slots: int, **more: Any) -> StoreBench:
        library = abi.find_library(None)
        made.append(StoreBench(gpu, library, tmp_path, banks, strategy, slots, **more))
        return made[-1]

    yield make
    for item in made:
        item.close()


def chunk(mine: StoreBench, seed: int) -> list[Inputs]:
    """A chunk that touches every expert, checked against the CPU."""
    inputs = mine.inputs(TOKENS)
    mine.draw(inputs, seed)
    wanted = mine.expected(inputs)
    mine.step(inputs, decode=False)
    mine.check(inputs, wanted)
    mine.check_slots()
    return inputs


def copied(gpu: FakeGpu, row_bytes: int) -> int:
    """Experts that went over the link."""
    sizes = [int(line.split()[1]) for line in gpu.log("^copy_in ")]
    return sum(size // row_bytes for size in sizes if size % row_bytes == 0)


@pytest.mark.parametrize("slots", [WHOLE, 40], ids=["whole layers", "pieces"])
def test_a_chunk_copies_each_missing_expert_once(
    gpu: FakeGpu, bench: Callable[..., StoreBench], slots: int
) -> None:
    """Bytes over the link: those of what is not resident, and nothing twice."""
    gpu.set("delay_us", 100)
    mine = bench("fetch", slots)
    few = mine.inputs(3)
    mine.draw(few, 1)
    mine.step(few)
    resident, row_bytes = len(mine.residents()), mine.banks[0].row_bytes
    assert 0 < resident < EXPERTS * LAYERS
    gpu.clear_log()
    chunk(mine, 2)
    total = mine.store.counters.total()
    assert total.streamed == copied(gpu, row_bytes) == EXPERTS * LAYERS - resident
    assert total.link_bytes == (total.streamed + total.fills) * row_bytes
    assert len(gpu.log("^launch down_gemm")) >= LAYERS


def test_the_next_layer_is_copied_while_this_one_computes(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    """As enqueued: layer 1's copies before layer 0's products; as run: never before what they
    overwrite was read.
    """
    gpu.set("delay_us", 200)
    mine = bench("fetch", WHOLE)
    gpu.clear_log()
    mine.store.begin_step(TOKENS, False)
    inputs = mine.inputs(TOKENS)
    mine.draw(inputs, 3)
    wanted = mine.expected(inputs)
    mine.enqueue(inputs)
    mine.device.synchronize()
    mine.store.end_step()
    mine.check(inputs, wanted)
    size = mine.banks[0].row_bytes * EXPERTS
    lines = gpu.log(rf"^copy_in {size} |^launch down_gemm|^run copy_in {size} |^run launch down_")
    asked = [line.split()[0] for line in lines if not line.startswith("run")]
    assert asked == ["copy_in", "copy_in", "launch", "launch", "copy_in", "launch"], (
        "layer 0 at begin, layer 1 before layer 0's products; the last one when it is reached"
    )
    ran = ["copy" if "copy_in" in line else "gemm" for line in lines if line.startswith("run")]
    assert ran.index("gemm") >= 1
    third = [place for place, what in enumerate(ran) if what == "copy"][2]
    assert ran[:third].count("gemm") >= 1, "layer 2 goes where layer 0 was read"


@pytest.mark.parametrize("removed", ["what computes", "what copies"])
def test_without_one_of_the_events_results_are_wrong(
    gpu: FakeGpu,
    bench: Callable[..., StoreBench],
    monkeypatch: pytest.MonkeyPatch,
    removed: str,
) -> None:
    """The tests above can fail: streams are slow, and fresh slots hold NaN."""
    mine = bench("fetch", 40)
    pipe = mine.store._pipe
    skipped = {
        "what computes": {buffer.copied.handle for buffer in pipe._buffers},
        "what copies": {buffer.computed.handle for buffer in pipe._buffers},
    }[removed]
    wait = Stream.wait

    def forgetful(self: Stream, event: Event) -> None:
        if event.handle not in skipped:
            wait(self, event)

    slow = mine.played._down_gemm
    monkeypatch.setattr(Stream, "wait", forgetful)
    if removed == "what computes":
        gpu.set("delay_us", 3000)
    else:

        def late(values: Any) -> None:
            time.sleep(0.03)
            slow(values)

        play(gpu, "grouped_gemm.down_gemm.f32", late)
    inputs = mine.inputs(TOKENS)
    mine.draw(inputs, 4)
    wanted = mine.expected(inputs)
    mine.step(inputs, decode=False)
    with pytest.raises(AssertionError):
        mine.check(inputs, wanted)
    monkeypatch.undo()


def test_the_decode_working_set_survives_a_chunk(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    """Buffers take the coldest slots, and what is left in them is evicted first."""
    mine = bench("fetch", 40)
    few = mine.inputs(2)
    for seed in range(6):
        mine.draw(few, seed)
        mine.step(few)
    before = mine.residents()
    hot = {(layer, int(expert)) for layer, item in enumerate(few) for expert in item.ids.unique()}
    chunk(mine, 9)
    after = mine.residents()
    assert hot <= set(after)
    gone = set(before) - set(after)
    assert len(gone) <= 2 * (40 // 8)
    misses = mine.store.counters.total().misses
    wanted = mine.expected(few)
    mine.step(few)
    mine.check(few, wanted)
    assert mine.store.counters.total().misses == misses, "the working set is all hits"


def test_a_resident_model_copies_nothing(gpu: FakeGpu, bench: Callable[..., StoreBench]) -> None:
    mine = bench("resident", EXPERTS * LAYERS)
    gpu.clear_log()
    chunk(mine, 5)
    assert copied(gpu, mine.banks[0].row_bytes) == 0
    assert gpu.pinned_bytes < mine.banks[0].data.numel(), "no bank needs to be pinned"


def test_a_slow_link_leaves_a_short_chunk_to_the_cpu(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    """What is resident is computed on the device meanwhile."""
    mine = bench("split", 24, rates=CPU_RATES)
    mine.wait_pinned()
    few = mine.inputs(2)
    mine.draw(few, 1)
    mine.step(few)
    resident = len(mine.residents())
    before = mine.store.counters.total()
    gpu.clear_log()
    seen: list[str] = []
    choose = mine.store._choose
    mine.store._choose = lambda *given: seen.append(choose(*given)) or seen[-1]  # type: ignore
    inputs = chunk(mine, 6)
    assert seen == [CPU]
    assert copied(gpu, mine.banks[0].row_bytes) == 0
    total = mine.store.counters.total()
    distinct = sum(len(item.ids.unique()) for item in inputs)
    assert total.on_cpu - before.on_cpu == distinct - resident
    assert len(mine.residents()) == resident


@pytest.mark.parametrize("strategy", ["fetch", "auto"])
def test_experts_on_disk_are_never_pinned(
    gpu: FakeGpu, bench: Callable[..., StoreBench], strategy: str
) -> None:
    """Few tokens are the CPU's; a chunk's layers are streamed, and read ahead."""
    asked: list[int] = []
    mine = bench(strategy, WHOLE, readahead=asked.extend)
    few = mine.inputs(2)
    mine.draw(few, 1)
    wanted = mine.expected(few)
    mine.step(few)
    mine.check(few, wanted)
    assert not gpu.log("host_register")
    assert mine.store.counters.total().fills == 0
    assert "stay on disk" in mine.store.notes[0]
    asked.clear()
    chunk(mine, 2)
    if strategy == "fetch":
        assert len(asked) == EXPERTS * LAYERS


@pytest.mark.parametrize("strategy", ["cpu", "split"])
def test_a_chunk_before_the_banks_are_pinned_is_the_cpus_or_streamed(
    gpu: FakeGpu, bench: Callable[..., StoreBench], strategy: str
) -> None:
    gpu.fail("host_register", 1, 9)
    mine = bench(strategy, 24)
    chunk(mine, 7)
    total = mine.store.counters.total()
    assert total.fills == 0
    assert total.on_cpu + total.streamed > 0


def test_the_last_layer_takes_few_rows_by_the_decode_path(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    """A chunk whose logits are wanted for one token: its last layer's experts are not streamed."""
    mine = bench("fetch", 40)
    inputs, one = mine.inputs(TOKENS), mine.inputs(1)
    mine.draw(inputs, 8)
    mine.draw(one, 9)
    mixed = [*inputs[:-1], one[-1]]
    wanted = [*mine.expected(inputs)[:-1], mine.expected(one)[-1]]
    mine.step(mixed, decode=False)
    mine.check(mixed, wanted)
    mine.check_slots()
    assert mine.store.counters.layers[-1].streamed == 0
    assert mine.store.counters.total().fills == 2


def test_a_chunk_that_ends_before_the_last_layer_gives_its_buffers_back(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    mine = bench("fetch", 40)
    inputs = mine.inputs(TOKENS)
    mine.draw(inputs, 8)
    mine.store.begin_step(TOKENS, False)
    for layer, item in zip(mine.layers[:-1], inputs, strict=False):
        layer.add_to(item.x, item.ids, item.weights, item.out)
    mine.device.synchronize()
    mine.store.end_step()
    assert mine.store._pool is not None
    mirror = mine.store._pool.tables.read()
    assert mirror.available(()) == 40
    mine.check_slots()
    chunk(mine, 9)


def test_link_seconds_of_a_chunk_correct_the_rates(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    gpu.set("delay_us", 3000)
    mine = bench("fetch", WHOLE)
    assert mine.store.planner is not None
    told = mine.store.planner.rates.link_bytes_per_s
    chunk(mine, 3)
    assert mine.store.planner.rates.link_bytes_per_s < told


def test_work_memory_is_made_once_and_grows_when_it_must(
    gpu: FakeGpu, bench: Callable[..., StoreBench]
) -> None:
    mine = bench("fetch", WHOLE)
    mine.store.reserve_work(TOKENS)
    held = gpu.live_bytes
    inputs = mine.inputs(TOKENS)
    taken = gpu.live_bytes - held
    mine.draw(inputs, 1)
    mine.step(inputs, decode=False)
    table = mine.store._pipe._table.on_device.numel()
    assert gpu.live_bytes - held - taken <= table + 4096
    mine.store.reserve_work(2 * TOKENS)
    assert gpu.live_bytes - held - taken > table + 4096
