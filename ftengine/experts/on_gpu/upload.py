"""A small table that the host makes for a step, sent through pinned memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ftengine.device.cuda import GpuDevice
from ftengine.gpu.memory import PinnedBlock
from ftengine.gpu.pair_callback import array_at


class Upload:
    """Device memory and its pinned source, as large as the largest table so far.

    send must not run while an earlier table is still on its way or in use.
    """

    def __init__(self, device: GpuDevice) -> None:
        self._device = device
        self._pinned: PinnedBlock | None = None
        self._address = 0
        self.on_device = torch.empty(0, dtype=torch.uint8)

    def send(self, table: npt.NDArray[Any]) -> None:
        """Enqueue the copy on the compute stream."""
        if table.nbytes > self.on_device.numel():
            self.close()
            self._pinned = PinnedBlock(self._device.driver, -(-table.nbytes // 64) * 64)
            self._address = self._pinned.take(table.nbytes)
            self.on_device = self._device.allocate(table.nbytes)
        array_at(self._address, np.uint8, (table.nbytes,))[:] = table.reshape(-1).view(np.uint8)
        self._device.compute.copy_in(self.on_device.data_ptr(), self._address, table.nbytes)

    def close(self) -> None:
        """Give the memory back; may be called twice."""
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            self._device.release(self.on_device)
            self.on_device = torch.empty(0, dtype=torch.uint8)
            pinned.close()
