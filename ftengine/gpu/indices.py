"""Index buffers of a step: written by the host in pinned memory, sent to the device in one copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ftengine.device.cuda import GpuDevice
from ftengine.gpu.memory import PinnedBlock
from ftengine.gpu.pair_callback import array_at

_ALIGN_BYTES = 256


class DeviceIndices:
    """Pairs of host array and device tensor, side by side in one block of each kind."""

    def __init__(self, device: GpuDevice, num_bytes: int) -> None:
        """num_bytes: of all that is taken, with up to 256 more for each part."""
        self._device = device
        self._block = PinnedBlock(device.driver, num_bytes)
        self._host = self._block.take(num_bytes)
        self._memory = device.allocate(num_bytes)
        self._used = 0

    @property
    def total_bytes(self) -> int:
        """Device memory of all parts."""
        return self._memory.numel()

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[npt.NDArray[Any], Any]:
        """A part: what the host writes, zeroed, and what the device will see."""
        count = math.prod(shape)
        start, size = self._used, count * dtype.itemsize
        self._used += -(-size // _ALIGN_BYTES) * _ALIGN_BYTES
        assert self._used <= self._memory.numel(), "the index block is too small"
        kind = np.int64 if dtype == torch.int64 else np.int32
        there = self._memory[start : start + size].view(dtype).view(shape)
        return array_at(self._host + start, kind, shape), there

    def send(self) -> None:
        """Copy all of them, on the compute stream."""
        self._device.compute.copy_in(self._memory.data_ptr(), self._host, self._used)

    def close(self) -> None:
        """Give everything back; may be called twice. Not while a step runs."""
        if not self._block.closed:
            self._block.close()
            self._device.release(self._memory)
