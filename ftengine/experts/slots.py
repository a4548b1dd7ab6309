"""Device slots: one arena, one whole expert per slot, shared by all layers.

Who lies in which slot is policy/residency.py's business; copies are transfer.py's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ftengine.device.base import Device
from ftengine.errors import CapacityError
from ftengine.experts.host import HostBank
from ftengine.kernels.dispatch import ExpertBank

log = logging.getLogger(__name__)

_ALIGN_BYTES = 4096


@dataclass(frozen=True)
class Kept:
    """One expert that survives a rebuild. Units: slot numbers before and after."""

    from_slot: int
    to_slot: int


def slot_bytes(hosts: Sequence[HostBank]) -> int:
    """Stride of a slot: the largest row of any layer, on a page."""
    return -(-max(host.bank.row_bytes for host in hosts) // _ALIGN_BYTES) * _ALIGN_BYTES


class SlotPool:
    """num_slots slots on a device, seen by the kernels as one bank per layer's row layout.

    Raises: CapacityError when the device has not enough memory.
    """

    def __init__(self, device: Device, hosts: Sequence[HostBank], num_slots: int) -> None:
        self._device = device
        self._hosts = hosts
        self.slot_bytes = slot_bytes(hosts)
        self.num_slots = 0
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._banks: list[ExpertBank] = []
        self._take(device.allocate(num_slots * self.slot_bytes), num_slots)

    @property
    def total_bytes(self) -> int:
        """Bytes of all slots."""
        return self.num_slots * self.slot_bytes

    def bank(self, layer: int) -> ExpertBank:
        """The slots as a bank whose row s is slot s, in this layer's formats."""
        return self._banks[layer]

    def row(self, slot: int, num_bytes: int) -> torch.Tensor:
        """The first bytes of a slot. Shape: uint8 [num_bytes]."""
        start = slot * self.slot_bytes
        return self._memory[start : start + num_bytes]

    def rebuild(self, num_slots: int, kept: Sequence[Kept]) -> bool:
        """A pool of another size. Returns whether the kept experts' bytes are still there.

        Where old and new pool do not fit side by side the old one goes first and nothing is kept.
        Raises: CapacityError when even that does not fit; then the old size is back, empty.
        """
        new_bytes = num_slots * self.slot_bytes
        try:
            memory = self._device.allocate(new_bytes)
        except CapacityError:
            return self._rebuild_empty(num_slots, new_bytes)
        for item in kept:
            start = item.to_slot * self.slot_bytes
            self._device.move(
                memory[start : start + self.slot_bytes], self.row(item.from_slot, self.slot_bytes)
            )
        old = self._memory
        self._take(memory, num_slots)
        self._device.release(old)
        return True

    def release(self) -> None:
        """Give the memory back; may be called twice. Nothing may use it any more."""
        self._device.release(self._memory)
        self._take(torch.empty(0, dtype=torch.uint8), 0)

    def _rebuild_empty(self, num_slots: int, new_bytes: int) -> bool:
        log.info("expert slots: no room for old and new pool together; starting empty")
        old_slots = self.num_slots
        self._device.release(self._memory)
        self._take(torch.empty(0, dtype=torch.uint8), 0)
        try:
            self._take(self._device.allocate(new_bytes), num_slots)
        except CapacityError:
            self._take(self._device.allocate(old_slots * self.slot_bytes), old_slots)
            raise
        return False

    def _take(self, memory: torch.Tensor, num_slots: int) -> None:
        self._memory, self.num_slots = memory, num_slots
        rows = memory.view(num_slots, self.slot_bytes) if num_slots else None
        self._banks = (
            [] if rows is None else [replace(host.bank, data=rows) for host in self._hosts]
        )
