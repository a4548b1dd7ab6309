"""Dense layers that take turns in two buffers: right bytes at the right time, captured or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ftengine.device.cuda import GpuDevice
from ftengine.errors import EngineError
from ftengine.gpu.dense_stream import StreamedPlacer, layers_that_stay
from ftengine.gpu.stream import Event, Stream, capture
from tests.ftengine.gpu.fake_driver import FakeGpu, wrap

SIZE, LAYERS = 4096, 6


@pytest.fixture
def device(gpu: FakeGpu) -> Iterator[GpuDevice]:
    device = GpuDevice(gpu.driver(), wrap)
    yield device
    device.close()


class Model:
    """Each layer has two tensors that hold its number; computing = copying them to the results."""

    def __init__(self, device: GpuDevice, resident: int) -> None:
        self.device = device
        self.placer = StreamedPlacer(device, 2 * SIZE, resident)
        self.weights = [
            [
                self.placer.place(layer, torch.full((SIZE,), 1 + layer, dtype=torch.uint8))
                for _ in range(2)
            ]
            for layer in range(LAYERS)
        ]
        self.other = self.placer.place(-1, torch.full((8,), 99, dtype=torch.int32))
        self.placer.finish()
        self.results = device.allocate(2 * SIZE * LAYERS)

    def step(self) -> None:
        for layer, weights in enumerate(self.weights):
            self.placer.enter(layer)
            for place, tensor in enumerate(weights):
                at = self.results[(2 * layer + place) * SIZE :][:SIZE]
                self.device.move(at, tensor)

    def run(self) -> list[int]:
        self.results.fill_(0)
        self.step()
        return self.found()

    def found(self) -> list[int]:
        self.device.synchronize()
        return [int(part.unique().sum()) for part in self.results.view(2 * LAYERS, SIZE)]

    def close(self) -> None:
        self.device.synchronize()
        self.placer.close()
        self.device.release(self.results)


EXPECTED = [1 + layer for layer in range(LAYERS) for _ in range(2)]


@pytest.mark.parametrize("resident", [0, 1, 3, LAYERS - 1])
def test_every_layer_sees_its_own_bytes(gpu: FakeGpu, device: GpuDevice, resident: int) -> None:
    gpu.set("delay_us", 300)
    model = Model(device, resident)
    for _ in range(2):
        assert model.run() == EXPECTED
    assert model.other.tolist() == [99] * 8
    copies = gpu.log(f"^copy_in {2 * SIZE} pinned")
    assert len(copies) == 2 * (LAYERS - resident)
    assert model.placer.streamed_bytes == 2 * SIZE * (LAYERS - resident)
    model.close()


def test_the_next_layer_is_on_its_way_while_one_computes(gpu: FakeGpu, device: GpuDevice) -> None:
    model = Model(device, 0)
    model.run()
    gpu.clear_log()
    model.placer.enter(0)
    assert len(gpu.log("^copy_in")) == 2, "both buffers are free at a step's begin"
    model.placer.enter(1)
    assert len(gpu.log("^copy_in")) == 3
    device.synchronize()
    model.close()


def test_a_captured_step_streams_too(gpu: FakeGpu, device: GpuDevice) -> None:
    gpu.set("delay_us", 300)
    model = Model(device, 2)
    model.run()
    graph = capture(device.compute, model.step)
    for _ in range(3):
        model.results.fill_(0)
        graph.launch(device.compute)
        assert model.found() == EXPECTED
    graph.close()
    model.close()


@pytest.mark.parametrize("removed", ["copied", "read"])
def test_without_one_of_the_events_bytes_are_wrong(
    gpu: FakeGpu, device: GpuDevice, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    model = Model(device, 0)
    model.run()
    skipped = {getattr(buffer, removed).handle for buffer in model.placer._buffers}
    wait, move, copy = Stream.wait, Stream.copy_inside, Stream.copy_in
    elsewhere = device.allocate(2 * SIZE)

    def forgetful(self: Stream, event: Event) -> None:
        if event.handle not in skipped:
            wait(self, event)

    def slow(self: Stream, target: int, source: int, num_bytes: int) -> None:
        for _ in range(4):
            move(self, target, source, num_bytes)

    def late(self: Stream, target: int, source: int, num_bytes: int) -> None:
        for _ in range(4):
            copy(self, elsewhere.data_ptr(), source, num_bytes)
        copy(self, target, source, num_bytes)

    monkeypatch.setattr(Stream, "wait", forgetful)
    if removed == "read":
        monkeypatch.setattr(Stream, "copy_inside", slow)
    else:
        monkeypatch.setattr(Stream, "copy_in", late)
    gpu.set("delay_us", 2000)
    assert model.run() != EXPECTED
    monkeypatch.undo()
    device.release(elsewhere)
    model.close()


def test_a_layer_larger_than_was_said_is_refused(device: GpuDevice) -> None:
    placer = StreamedPlacer(device, SIZE, 0)
    with pytest.raises(EngineError, match="layer 1 has more than the 4096 bytes"):
        placer.place(1, torch.zeros(SIZE + 1, dtype=torch.uint8))
    placer.close()


def test_as_many_layers_stay_as_fit() -> None:
    assert layers_that_stay(100, [20] * 5) == 5
    assert layers_that_stay(99, [20] * 5) == 2
    assert layers_that_stay(40, [20] * 5) == 0
    assert layers_that_stay(105, [10, 10, 60, 10, 10, 10]) == 3, "the largest one stays"
    with pytest.raises(EngineError, match=r"two layers of the model \(40 bytes\) do not fit"):
        layers_that_stay(39, [20] * 5)
