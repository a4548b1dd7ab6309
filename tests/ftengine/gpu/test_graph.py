"""Captured steps with the CPU inside: order, replays, both ways of handing over, the watchdog."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ftengine.errors import EngineError
from ftengine.gpu.driver import Driver
from ftengine.gpu.graph import StepGraphs, Watch
from ftengine.gpu.hand_off import HandOff, Task
from ftengine.gpu.memory import PinnedBlock
from ftengine.gpu.stream import Event, Stream, capture
from ftman.clock import pause
from tests.ftengine.gpu.fake_driver import FakeGpu

NUM = 64
TaskType = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
BOTH_WAYS = pytest.mark.parametrize("rig", [1, 0], ids=["memory", "host function"], indirect=True)


@dataclass
class Rig:
    """A step of two layers: device -> pinned -> CPU (x * 3 + layer) -> device, beside the GPU."""

    gpu: FakeGpu
    driver: Driver
    main: Stream
    side: Stream
    device: int
    buffers: list[int]
    events: list[Event]
    hand_off: HandOff | None = None
    blocked: threading.Event = field(default_factory=threading.Event)
    status: int = 0
    keep: list[Any] = field(default_factory=list)

    def task(self, layer: int) -> Task:
        buffer = (ctypes.c_uint8 * NUM).from_address(self.buffers[layer])

        def run(_: int) -> int:
            for idx in range(NUM):
                buffer[idx] = (buffer[idx] * 3 + layer) & 0xFF
            return self.status

        return self.add_task(f"layer {layer}", run)

    def add_task(self, name: str, function: Any) -> Task:
        wrapped = TaskType(function)
        self.keep.append(wrapped)
        return Task(name, ctypes.cast(wrapped, ctypes.c_void_p).value or 0, 0)

    def enqueue(self, size: int) -> None:
        assert self.hand_off is not None
        self.main.copy_in(self.device, self.buffers[2], NUM)
        for layer in range(2):
            forked, joined = self.events[2 * layer : 2 * layer + 2]
            self.main.record(forked)
            self.side.wait(forked)
            self.side.copy_out(self.buffers[layer], self.device, NUM)
            self.hand_off.enqueue(self.side, layer)
            self.side.copy_in(self.device, self.buffers[layer], NUM)
            self.side.record(joined)
            self.main.fill(self.device + NUM, layer, NUM)  # the GPU's own work meanwhile
            self.main.wait(joined)
        self.main.copy_out(self.buffers[2], self.device, size)

    def value(self) -> bytes:
        return ctypes.string_at(self.buffers[2], NUM)


@pytest.fixture
def rig(request: pytest.FixtureRequest, gpu: FakeGpu) -> Iterator[Rig]:
    gpu.set("memory_ops", getattr(request, "param", 1))
    driver = gpu.driver()
    block = PinnedBlock(driver, 3 * NUM)
    rig = Rig(
        gpu, driver, Stream(driver), Stream(driver), driver.allocate(2 * NUM),
        [block.take(NUM) for _ in range(3)], [Event(driver) for _ in range(4)],
    )  # fmt: skip
    yield rig
    if rig.hand_off is not None:
        rig.hand_off.close()
    for item in (rig.main, rig.side, *rig.events, block):
        item.close()
    driver.free(rig.device)
    driver.close()


@BOTH_WAYS
def test_a_replayed_step_computes_what_an_eager_one_does(rig: Rig) -> None:
    _start(rig)
    rig.gpu.set("delay_us", 300)
    ctypes.memset(rig.buffers[2], 5, NUM)
    rig.enqueue(NUM)
    rig.main.synchronize()
    eager = rig.value()
    assert eager == bytes([(5 * 3 + 0) * 3 + 1]) * NUM
    graphs = StepGraphs(rig.main, rig.enqueue, (NUM,), rig.hand_off)
    graphs.capture()
    for value in (5, 7, 5):
        ctypes.memset(rig.buffers[2], value, NUM)
        graphs.run(NUM)
        assert rig.value() == bytes([(value * 9 + 1) & 0xFF]) * NUM
    graphs.close()


def test_the_stream_hands_over_in_order(rig: Rig) -> None:
    _start(rig)
    graphs = StepGraphs(rig.main, rig.enqueue, (NUM,), rig.hand_off)
    graphs.capture()
    rig.gpu.clear_log()
    graphs.run(NUM)
    names = [line.split()[1] for line in rig.gpu.log("^run")]
    one_layer = ["copy_out", "write_value", "write_value", "wait_value", "copy_in"]
    assert names == ["copy_in", *one_layer, *one_layer, "copy_out"]
    values = [line.split()[2] for line in rig.gpu.log("^run w")]
    assert values == ["0", "1", "1", "0", "2", "2"]
    graphs.close()


def test_capturing_runs_nothing(rig: Rig) -> None:
    _start(rig)
    rig.gpu.clear_log()
    graphs = StepGraphs(rig.main, rig.enqueue, (NUM // 2, NUM), rig.hand_off)
    graphs.capture()
    assert rig.gpu.log("^run") == []
    assert graphs.size_for(3) == NUM // 2
    assert graphs.size_for(NUM) == NUM
    with pytest.raises(EngineError, match="65 sequences was never captured, the largest is 64"):
        graphs.size_for(NUM + 1)
    graphs.close()


def test_a_failed_capture_leaves_no_graph(rig: Rig) -> None:
    _start(rig)

    def enqueue(size: int) -> None:
        rig.enqueue(size)
        if size == NUM:
            raise EngineError("no such kernel")

    graphs = StepGraphs(rig.main, enqueue, (1, NUM), rig.hand_off)
    with pytest.raises(EngineError, match="no such kernel"):
        graphs.capture()
    assert len(rig.gpu.log("graph_destroy")) == 1
    rig.main.synchronize()  # the stream is of use again
    graphs.close()


@pytest.mark.parametrize("sizes", [(), (0,), (2, 1), (1, 1)])
def test_batch_sizes_rise(rig: Rig, sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must rise from 1"):
        StepGraphs(rig.main, rig.enqueue, sizes)


@BOTH_WAYS
def test_a_failing_cpu_branch_is_an_error_of_its_step(rig: Rig) -> None:
    _start(rig)
    graphs = StepGraphs(rig.main, rig.enqueue, (NUM,), rig.hand_off)
    graphs.capture()
    rig.status = 5
    with pytest.raises(EngineError, match="failed with status 5") as caught:
        graphs.run(NUM)
    assert caught.value.code == "cpu_branch"
    rig.status = 0
    graphs.run(NUM)
    graphs.close()


def test_a_stuck_hand_off_becomes_a_typed_error(rig: Rig) -> None:
    """The task of layer 1 does not return: the watchdog names it and frees the device."""
    _start(rig, stuck=1)
    watch = Watch(limit_s=0.3, grace_s=5.0)
    graphs = StepGraphs(rig.main, rig.enqueue, (NUM,), rig.hand_off, watch)
    graphs.capture()
    with pytest.raises(
        EngineError, match=r"within 0\.3 s; it waits for the CPU branch layer 1;"
    ) as caught:
        graphs.run(NUM)
    assert caught.value.code == "gpu_stuck"
    assert "still busy" not in caught.value.message
    rig.main.synchronize()  # the device is free again
    with pytest.raises(EngineError, match="layer 1"):
        graphs.run(NUM)
    rig.blocked.set()
    graphs.close()


def test_a_dead_hand_off_thread_becomes_a_typed_error(rig: Rig) -> None:
    """Nobody serves: every hand-off of the step is let pass."""
    rig.hand_off = HandOff(rig.driver, [rig.task(0), rig.task(1)], rig.gpu.library)
    graphs = StepGraphs(rig.main, rig.enqueue, (NUM,), rig.hand_off, Watch(0.05, 5.0))
    graphs.capture()
    with pytest.raises(EngineError, match="CPU branch layer 0; load"):
        graphs.run(NUM)
    rig.main.synchronize()
    graphs.close()


@pytest.mark.parametrize("rig", [0], ids=["host function"], indirect=True)
def test_a_stuck_host_function_says_that_the_device_stays_busy(rig: Rig) -> None:
    _start(rig, stuck=0)
    graphs = StepGraphs(rig.main, rig.enqueue, (NUM,), rig.hand_off, Watch(0.05, 0.05))
    graphs.capture()
    with pytest.raises(EngineError, match="CPU branch layer 0; the GPU is still busy"):
        graphs.run(NUM)
    rig.blocked.set()
    rig.main.synchronize()
    graphs.close()


def test_a_thread_that_does_not_end_is_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftengine.gpu.hand_off._JOIN_S", 0.02)
    _start(rig, stuck=0)
    assert rig.hand_off is not None
    graph, ended = capture(rig.main, lambda: rig.enqueue(NUM)), rig.events[0]
    graph.launch(rig.main)
    rig.main.record(ended)
    while not rig.hand_off.waiting():
        pause(0.001)
    with pytest.raises(EngineError, match="layer 0 does not end; the engine must be started"):
        rig.hand_off.close()
    rig.blocked.set()
    while not ended.passed:  # the thread is on its way out and may not serve layer 1
        rig.hand_off.release()
        pause(0.001)
    graph.close()


def _start(rig: Rig, stuck: int | None = None) -> None:
    def blocked(_: int) -> int:
        rig.blocked.wait(20)
        return 0

    tasks = [
        rig.add_task(f"layer {layer}", blocked) if layer == stuck else rig.task(layer)
        for layer in range(2)
    ]
    rig.hand_off = HandOff(rig.driver, tasks, rig.gpu.library)
    rig.hand_off.start()
