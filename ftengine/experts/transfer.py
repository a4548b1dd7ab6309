"""Copies of experts from host banks into slots, over the device's copy stream.

The one place where fills are started and waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ftengine.device.base import Device, Event
from ftengine.experts.counters import LayerCounters
from ftengine.experts.host import HostBank
from ftengine.experts.slots import SlotPool
from ftman.clock import Clock


@dataclass(frozen=True)
class Copies:
    """Copies under way. Units: seconds of the clock when they were enqueued."""

    event: Event
    started_s: float


class Transfer:
    """Fills slots. Every start is followed by one wait before anything computes from the slots."""

    def __init__(
        self,
        device: Device,
        hosts: Sequence[HostBank],
        slots: SlotPool,
        counters: Sequence[LayerCounters],
        clock: Clock,
    ) -> None:
        self._device = device
        self._hosts = hosts
        self._slots = slots
        self._counters = counters
        self._clock = clock

    def start(self, layer: int, places: Iterable[tuple[int, int]]) -> Copies:
        """Enqueue (expert, slot) copies of one layer."""
        host, counters = self._hosts[layer], self._counters[layer]
        num_bytes = host.bank.row_bytes
        items = list(places)
        started_s = self._clock.monotonic()
        host.will_read(expert for expert, _ in items)
        for expert, slot in items:
            self._device.copy(self._slots.row(slot, num_bytes), host.row(expert))
        counters.link_bytes += num_bytes * len(items)
        return Copies(self._device.record(), started_s)

    def wait(self, layer: int, copies: Copies) -> float:
        """Make the copies visible to compute.

        Returns the seconds from their start to their end; 0 where they had ended unseen, while
        something else was computed.
        """
        late = self._device.passed(copies.event)
        started = self._clock.monotonic()
        self._device.wait(copies.event)
        ended = self._clock.monotonic()
        self._counters[layer].stall_s += ended - started
        return 0.0 if late else ended - copies.started_s

    def drain(self) -> None:
        """Wait for everything in flight, whatever it was for."""
        self._device.wait(self._device.record())
