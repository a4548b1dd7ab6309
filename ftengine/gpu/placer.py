"""Host tensors to device memory: small ones side by side in blocks, large ones in exact sizes."""

from __future__ import annotations

from typing import Protocol

import torch

from ftengine.device.cuda import GpuDevice

BLOCK_BYTES = 256 << 10
"""So much may be left over of the last block."""
_ALIGN_BYTES = 512


class Placer(Protocol):
    """Where the tensors of a model's layers lie. streams: not all of them at once."""

    streams: bool

    def place(self, layer: int, data: torch.Tensor) -> torch.Tensor:
        """A tensor of the same values on the device; layer -1 = of no layer."""

    def enter(self, layer: int) -> None:
        """What is enqueued from now on reads this layer; called only if `streams`."""


class ResidentPlacer:
    """Everything stays on the device. finish before the host's tensors go."""

    streams = False

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._memory: list[torch.Tensor] = []
        self._block = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._sources: list[torch.Tensor] = []

    @property
    def total_bytes(self) -> int:
        """Device memory taken."""
        return sum(memory.numel() for memory in self._memory)

    def place(self, layer: int, data: torch.Tensor) -> torch.Tensor:
        """As Placer.place. Raises: CapacityError with need and have."""
        source = data.contiguous()
        num_bytes = source.numel() * source.element_size()
        target = self._take(num_bytes)
        if num_bytes:
            self._device.compute.copy_in(target.data_ptr(), source.data_ptr(), num_bytes)
            self._sources.append(source)
        return target.view(source.dtype).view(source.shape)

    def enter(self, layer: int) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Wait for the copies."""
        self._device.compute.synchronize()
        self._sources.clear()

    def close(self) -> None:
        """Give all memory back; may be called twice."""
        memory, self._memory = self._memory, []
        for item in memory:
            self._device.release(item)

    def _take(self, num_bytes: int) -> torch.Tensor:
        if num_bytes > BLOCK_BYTES // 4:
            self._memory.append(self._device.allocate(num_bytes))
            return self._memory[-1]
        if self._used + num_bytes > self._block.numel():
            self._block, self._used = self._device.allocate(BLOCK_BYTES), 0
            self._memory.append(self._block)
        start = self._used
        self._used += -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
        return self._block[start : start + num_bytes]
