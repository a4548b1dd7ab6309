"""Layers of a model that is larger than the device: some stay there, the others take turns.

Two buffers hold a layer each; while one layer computes, the next one's bytes are copied into the
buffer that the layer before has left. Every tensor has one address for good, so a step may be
captured. Where tensors go while a model is loaded: placer.py's protocol.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import torch

from ftengine.device.cuda import GpuDevice
from ftengine.device.torch_device import page_aligned
from ftengine.errors import EngineError
from ftengine.gpu.memory import PinnedBanks, Region
from ftengine.gpu.placer import ResidentPlacer
from ftengine.gpu.stream import Event

log = logging.getLogger(__name__)

_ALIGN_BYTES = 512


@dataclass
class _Layer:
    """One streamed layer: where its tensors go, and their bytes on the host."""

    used: int = 0
    sources: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    host: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))


class _Buffer:
    """One of the two."""

    def __init__(self, device: GpuDevice, num_bytes: int) -> None:
        self.memory = device.allocate(num_bytes)
        self.read, self.copied = Event(device.driver), Event(device.driver)


class StreamedPlacer:
    """Placer. The first `resident` layers stay on the device.

    layer_bytes: of the largest streamed layer, each tensor rounded up to 512.
    """

    streams = True

    def __init__(self, device: GpuDevice, layer_bytes: int, resident: int) -> None:
        self._device = device
        self._resident = resident
        self._stay = ResidentPlacer(device)
        self._buffers = tuple(_Buffer(device, layer_bytes) for _ in range(2))
        self._layers: dict[int, _Layer] = {}
        self._pins: PinnedBanks | None = None
        self._started = -1
        """The last layer of this step whose copy is enqueued."""

    @property
    def total_bytes(self) -> int:
        """Device memory taken."""
        return self._stay.total_bytes + sum(item.memory.numel() for item in self._buffers)

    @property
    def streamed_bytes(self) -> int:
        """What every step copies over the link."""
        return sum(layer.used for layer in self._layers.values())

    def place(self, layer: int, data: torch.Tensor) -> torch.Tensor:
        """As Placer.place; a streamed tensor's bytes come when its layer is entered.

        Raises: CapacityError; EngineError for a layer that is larger than was said.
        """
        if layer < self._resident:
            return self._stay.place(layer, data)
        source = data.contiguous()
        num_bytes = source.numel() * source.element_size()
        mine = self._layers.setdefault(layer, _Layer())
        start = mine.used
        mine.used += -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
        memory = self._buffers[layer % 2].memory
        if mine.used > memory.numel():
            raise EngineError(
                f"layer {layer} has more than the {memory.numel()} bytes that a buffer holds",
                code="device_memory",
            )
        mine.sources.append((start, source))
        return memory[start : start + num_bytes].view(source.dtype).view(source.shape)

    def finish(self) -> None:
        """All tensors are placed: streamed layers become one run of host memory each, pinned."""
        self._stay.finish()
        for layer in self._layers.values():
            layer.host = page_aligned(layer.used)
            for start, source in layer.sources:
                raw = source.reshape(-1).view(torch.uint8)
                layer.host[start : start + raw.numel()] = raw
            layer.sources.clear()
        regions = [Region(layer.host.data_ptr(), layer.used) for layer in self._layers.values()]
        self._pins = PinnedBanks(self._device.driver, regions)
        self._pins.start()
        log.info(
            "%d layers are streamed, %.2f GB a step", len(self._layers), self.streamed_bytes / 1e9
        )

    def enter(self, layer: int) -> None:
        """Layer after layer, from 0 on: what is enqueued from now on reads this one."""
        compute = self._device.compute
        if layer == 0:
            if self._pins is not None:  # copies from memory that may move would hold up the host
                self._pins.wait()
            self._started = self._resident - 1
            for buffer in self._buffers:
                compute.record(buffer.read)
            self._start(self._resident)
            self._start(self._resident + 1)
        elif layer - 1 in self._layers:
            compute.record(self._buffers[(layer - 1) % 2].read)
        if layer in self._layers:
            compute.wait(self._buffers[layer % 2].copied)
            self._start(layer + 1)

    def close(self) -> None:
        """Give all memory back; may be called twice. Nothing may be in flight."""
        if self._pins is not None:
            self._pins.close()
        self._stay.close()
        buffers, self._buffers = self._buffers, ()
        for buffer in buffers:
            self._device.release(buffer.memory)
            buffer.read.close()
            buffer.copied.close()

    def _start(self, layer: int) -> None:
        """Enqueue a layer's copy behind what reads its buffer."""
        if layer <= self._started or layer not in self._layers:
            return
        self._started = layer
        copies, buffer, mine = self._device.copies, self._buffers[layer % 2], self._layers[layer]
        copies.wait(buffer.read)
        copies.copy_in(buffer.memory.data_ptr(), mine.host.data_ptr(), mine.used)
        copies.record(buffer.copied)


def layers_that_stay(free_bytes: int, layer_bytes: list[int]) -> int:
    """How many first layers fit beside two buffers for the largest of the others.

    layer_bytes: as place rounds them. All of them where none must be streamed.
    Raises: EngineError where not even two buffers fit.
    """
    if sum(layer_bytes) <= free_bytes:
        return len(layer_bytes)
    for count in range(len(layer_bytes) - 1, -1, -1):
        if sum(layer_bytes[:count]) + 2 * max(layer_bytes[count:]) <= free_bytes:
            return count
    raise EngineError(
        f"two layers of the model ({2 * max(layer_bytes)} bytes) do not fit on the device, which "
        f"has {free_bytes} bytes for them; use a smaller context, or --device cpu",
        code="device_memory",
    )
