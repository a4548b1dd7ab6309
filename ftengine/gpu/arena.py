"""Work memory of kernels on a device: one block, cut anew for every call.

Launches of one stream run in order, so the next call may write where the last one has read.
"""

from __future__ import annotations

import math

import torch

from ftengine.device.cuda import GpuDevice
from ftengine.errors import EngineError

_ALIGN_BYTES = 256


class Arena:
    """A block whose parts are valid until `reset`. Made once, so that graphs may name its parts."""

    def __init__(self, device: GpuDevice, num_bytes: int) -> None:
        self._device = device
        self._memory = device.allocate(max(num_bytes, _ALIGN_BYTES))
        self._used = 0

    @property
    def total_bytes(self) -> int:
        """Its size."""
        return self._memory.numel()

    def reset(self) -> None:
        """All parts may be given out again."""
        self._used = 0

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A part, contents undefined. Raises: EngineError where the block is too small."""
        start = self._used
        num_bytes = math.prod(shape) * dtype.itemsize
        self._used += -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
        if start + num_bytes > self._memory.numel():
            raise EngineError(
                f"a step needs {start + num_bytes} bytes of work memory on the GPU and has "
                f"{self._memory.numel()}; use fewer --step-tokens, or --device cpu",
                code="device_memory",
            )
        return self._memory[start : start + num_bytes].view(dtype).view(shape)

    def close(self) -> None:
        """Give it back; may be called twice. Not while a step runs."""
        memory, self._memory = self._memory, self._memory[:0]
        self._device.release(memory)
