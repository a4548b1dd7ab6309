"""The best logits of a step: found on the device, brought to the host in one small copy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ftengine.gpu.memory import PinnedBlock
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.triton import builds, layer_calls

KEEP = 64
"""Candidates of a row: more than the usual top_k; other filters ask for the whole row."""
_ALIGN_BYTES = 64


@dataclass(frozen=True)
class HostBest:
    """Shape: ids int32 and values float32 [rows, kept], best first; log_sums float32 [rows]."""

    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    log_sums: npt.NDArray[np.float32]


class BestLogits:
    """Buffers for steps of at most max_rows rows."""

    def __init__(self, tools: GpuTools, max_rows: int, vocab_size: int) -> None:
        self._tools = tools
        self._kept = min(KEEP, vocab_size)
        blocks = -(-vocab_size // builds.VOCAB_BLOCK)
        allocate = tools.device.allocate
        keys = allocate(8 * max_rows * blocks * KEEP).view(torch.int64)
        self._keys = keys.view(max_rows, blocks, KEEP)
        self._sums = allocate(8 * max_rows * blocks).view(torch.float32)
        self._sums = self._sums.view(max_rows, blocks, 2)
        self._row_bytes = 4 * (2 * self._kept + 1)
        size = max_rows * self._row_bytes + 2 * _ALIGN_BYTES
        self._found = allocate(size)
        self._block = PinnedBlock(tools.device.driver, size)
        self._host = self._block.take(size)

    @property
    def total_bytes(self) -> int:
        """Device memory of all buffers."""
        return 8 * (self._keys.numel() + self._sums.numel() // 2) + self._found.numel()

    def enqueue(self, logits: torch.Tensor) -> None:
        """Find them and copy them out, on the compute stream. Shape: logits [rows, vocab]."""
        rows = logits.shape[0]
        ids, values, log_sums = self._parts(rows)
        keys, sums = self._keys[:rows], self._sums[:rows]
        self._tools.launch(layer_calls.best_of_block(logits, keys, sums))
        self._tools.launch(layer_calls.merge_blocks(logits, keys, sums, ids, values, log_sums))
        stream, end = self._tools.device.compute, self._ends(rows)[-1]
        stream.copy_out(self._host, self._found.data_ptr(), end)

    def read(self, rows: int) -> HostBest:
        """What the last step of so many rows found; after it has ended. A copy."""
        first, second, end = self._ends(rows)
        data = np.frombuffer(ctypes.string_at(self._host, end), np.uint8)
        shape = (rows, self._kept)
        ids = data[: 4 * rows * self._kept].view(np.int32).reshape(shape)
        values = data[first : first + 4 * rows * self._kept].view(np.float32).reshape(shape)
        return HostBest(ids, values, data[second:end].view(np.float32))

    def close(self) -> None:
        """Give everything back; may be called twice."""
        if self._block.closed:
            return
        self._block.close()
        for memory in (self._keys, self._sums, self._found):
            self._tools.device.release(memory)

    def _parts(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first, second, end = self._ends(rows)
        count = rows * self._kept
        ids = self._found[: 4 * count].view(torch.int32).view(rows, -1)
        values = self._found[first : first + 4 * count].view(torch.float32).view(rows, -1)
        return ids, values, self._found[second:end].view(torch.float32)

    def _ends(self, rows: int) -> tuple[int, int, int]:
        """Where values and log sums begin, and where it ends: addresses are multiples of 16."""
        first = -(-4 * rows * self._kept // _ALIGN_BYTES) * _ALIGN_BYTES
        return first, 2 * first, 2 * first + 4 * rows
