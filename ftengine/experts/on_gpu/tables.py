"""The tables of admission in device memory, their pinned mirror, and what is read back of them.

What the entries mean is kernels/triton/expert_calls.py's; what the host may change is
policy/mirror.py's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ftengine.device.cuda import GpuDevice
from ftengine.experts.policy.mirror import Mirror
from ftengine.gpu.memory import LINE_BYTES, PinnedBlock
from ftengine.gpu.pair_callback import array_at
from ftengine.kernels.triton.expert_calls import AdmissionTables, empty_tables

_SLOT_TABLES = ("slot_of", "owner_of", "stamp_of")
_ORDER = (*_SLOT_TABLES, "clock", "rates", "totals")
"""What the host reads or writes comes first, in one run each way."""
_TOTALS = 8
"""Counts of a layer, padded so that every layer's begin where kernels may expect it."""
HITS, MISSES, FILLS, ON_CPU = range(4)


@dataclass(frozen=True)
class _Part:
    """Where a table lies in both blocks."""

    start: int
    num_bytes: int


class DeviceTables:
    """Tables for one number of slots. Host methods run between steps, when nothing is in flight."""

    def __init__(
        self,
        device: GpuDevice,
        sizes: tuple[int, int, int],
        rates: Sequence[float],
        old: DeviceTables | None = None,
    ) -> None:
        """sizes: layers, experts of a layer, slots. old: keeps what was learnt, not the slots."""
        self._device = device
        self.num_experts = sizes[1]
        fresh = _fresh(sizes, rates)
        values = {field.name: getattr(fresh, field.name) for field in fields(fresh)}
        names = (*_ORDER, *(name for name in values if name not in _ORDER))
        self._parts, at = {}, 0
        for name in names:
            size = values[name].numel() * values[name].element_size()
            self._parts[name] = _Part(at, size)
            at += -(-size // LINE_BYTES) * LINE_BYTES
        self._memory = device.allocate(at)
        self._pinned = PinnedBlock(device.driver, at)
        self._start = self._pinned.take(at)
        self._total_bytes = at
        for name, value in values.items():
            self._host(name, value)[...] = value.numpy()
        if old is not None:
            self._learn_from(old)
        self.tables = AdmissionTables(
            **{name: self._on_device(name, values[name]) for name in values}
        )
        shapes = {name: values[name] for name in (*_SLOT_TABLES, "rates", "totals")}
        self._views = {name: self._host(name, value) for name, value in shapes.items()}
        self._copy_in(0, at)
        device.compute.synchronize()

    def read(self) -> Mirror:
        """What the device says now about its slots; waits for it."""
        self._copy_out(0, self._end(_SLOT_TABLES[-1]))
        self._device.compute.synchronize()
        return Mirror(self.num_experts, *(self._views[name] for name in _SLOT_TABLES))

    def write(self) -> None:
        """Give the device what was changed in the mirror since read."""
        self._copy_in(0, self._end(_SLOT_TABLES[-1]))

    def write_rates(self, rates: Sequence[float]) -> bool:
        """Give the device other rates, where they are others. Returns whether they were."""
        if self._views["rates"].tolist() == list(rates):
            return False
        self._views["rates"][:] = rates
        part = self._parts["rates"]
        self._copy_in(part.start, part.num_bytes)
        return True

    def enqueue_totals(self) -> None:
        """Let the counts of this step's end come to the host; may be captured."""
        part = self._parts["totals"]
        self._copy_out(part.start, part.num_bytes)

    def totals(self) -> npt.NDArray[np.int64]:
        """Counts as they last came, by layer: hits, misses, fills, on the CPU, owed."""
        found: npt.NDArray[np.int64] = self._views["totals"]
        return found

    def close(self) -> None:
        """Give the memory back; may be called twice. Nothing may be in flight."""
        if not self._pinned.closed:
            self._device.release(self._memory)
            self._pinned.close()

    def _learn_from(self, old: DeviceTables) -> None:
        """Demand, clock, worth and counts go on."""
        old._copy_out(0, old._total_bytes)
        old._device.compute.synchronize()
        for name, part in self._parts.items():
            if name not in (*_SLOT_TABLES, "rates"):
                ctypes.memmove(
                    self._start + part.start, old._start + old._parts[name].start, part.num_bytes
                )

    def _host(self, name: str, like: torch.Tensor) -> npt.NDArray[Any]:
        part = self._parts[name]
        kind = like.numpy().dtype
        return array_at(self._start + part.start, kind, tuple(like.shape))

    def _on_device(self, name: str, like: torch.Tensor) -> torch.Tensor:
        part = self._parts[name]
        memory = self._memory[part.start : part.start + part.num_bytes]
        return memory.view(like.dtype).view(like.shape)

    def _end(self, name: str) -> int:
        return self._parts[name].start + self._parts[name].num_bytes

    def _copy_in(self, start: int, num_bytes: int) -> None:
        address = self._memory.data_ptr() + start
        self._device.compute.copy_in(address, self._start + start, num_bytes)

    def _copy_out(self, start: int, num_bytes: int) -> None:
        address = self._memory.data_ptr() + start
        self._device.compute.copy_out(self._start + start, address, num_bytes)


def _fresh(sizes: tuple[int, int, int], rates: Sequence[float]) -> AdmissionTables:
    num_layers, num_experts, num_slots = sizes
    plain = empty_tables(num_layers, num_experts, num_slots, rates)
    return replace(plain, totals=torch.zeros(num_layers, _TOTALS, dtype=torch.int64))
