"""The store of an engine with a device: slots, tables and threads, made once all banks are known.

Resizing happens here; one layer of one step is executor.py's business.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ftengine.device.base import Device
from ftengine.device.machine import Machine
from ftengine.errors import CapacityError
from ftengine.experts.branch import CpuBranch
from ftengine.experts.counters import ExpertCounters
from ftengine.experts.executor import Executor, ExecutorParts
from ftengine.experts.host import HostBank, Readahead, Shared
from ftengine.experts.layer_stream import LayerStream
from ftengine.experts.partials import PairKernel, Routed
from ftengine.experts.policy.planner import Planner
from ftengine.experts.policy.rates import Rates
from ftengine.experts.policy.residency import Residency
from ftengine.experts.slots import Kept, SlotPool, slot_bytes
from ftengine.experts.timing import Timing, VirtualTime, WallTime
from ftengine.experts.transfer import Transfer
from ftengine.experts.ways import WayChooser
from ftengine.kernels.dispatch import ExpertBank, Kernels
from ftman.clock import SYSTEM, Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreSettings:
    """strategy: one of planner.STRATEGIES. rates: what the planner starts from.

    machine: the simulated one whose seconds teach the planner; None = the wall clock's do.
    experts_per_token: most experts that a token takes in a layer; a real GPU's buffers need it.
    """

    strategy: str
    rates: Rates
    machine: Machine | None = None
    experts_per_token: int = 0


class DeviceStore:
    """All routed experts of an engine with a device. add_layer for each layer, then start."""

    def __init__(
        self, kernels: Kernels, device: Device, settings: StoreSettings, clock: Clock = SYSTEM
    ) -> None:
        self.counters = ExpertCounters()
        self._kernel = PairKernel(kernels)
        self._device = device
        self._settings = settings
        self._clock = clock
        machine = settings.machine
        self.timing: Timing = WallTime() if machine is None else VirtualTime(machine)
        self._hosts: list[HostBank] = []
        self._slots: SlotPool | None = None
        self._residency: Residency | None = None
        self._executor: Executor | None = None
        self.planner: Planner | None = None
        self._branch = CpuBranch(self._kernel, clock)

    @property
    def num_experts(self) -> int:
        """Experts of all layers together."""
        return sum(host.bank.num_experts for host in self._hosts)

    @property
    def host_bytes(self) -> int:
        """Bytes of all banks, in memory or mapped."""
        return sum(host.bank.data.numel() for host in self._hosts)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return slot_bytes(self._hosts)

    @property
    def num_slots(self) -> int:
        """Slots of the pool; 0 under the strategy cpu."""
        return 0 if self._slots is None else self._slots.num_slots

    @property
    def num_resident(self) -> int:
        """Experts that lie in slots now."""
        return 0 if self._residency is None else self._residency.num_resident

    def add_layer(self, bank: ExpertBank, readahead: Readahead | None) -> LayerExperts:
        """Take the next MoE layer's bank."""
        self._hosts.append(HostBank(bank, readahead))
        self.counters.add_layer()
        return LayerExperts(self, len(self._hosts) - 1)

    def start(self, num_slots: int) -> None:
        """Make the slot pool. Raises: CapacityError when it does not fit."""
        hosts, counters = self._hosts, self.counters.layers
        slots = SlotPool(self._device, hosts, num_slots)
        residency = Residency(len(hosts), hosts[0].bank.num_experts, num_slots)
        transfer = Transfer(self._device, hosts, slots, counters, self._clock)
        planner = Planner(
            self._settings.rates,
            [host.bank.row_bytes for host in hosts],
            self._settings.strategy,
        )
        stream = LayerStream(residency, slots, transfer, self._kernel, counters)
        self._slots, self._residency, self._transfer = slots, residency, transfer
        self.planner = planner
        self._executor = Executor(
            ExecutorParts(
                hosts=hosts,
                counters=counters,
                slots=slots,
                residency=residency,
                planner=planner,
                transfer=transfer,
                branch=self._branch,
                kernel=self._kernel,
                stream=stream,
                ways=WayChooser(residency, planner, self.slot_bytes),
                timing=self.timing,
                clock=self._clock,
            )
        )
        if self._settings.strategy == "resident":
            self._fill_all()

    def run(self, layer: int, routed: Routed) -> None:
        """One layer of one step."""
        assert self._executor is not None, "the store was not started"
        self._executor.run(layer, routed)

    def resize(self, num_slots: int) -> None:
        """Another number of slots, between steps; survivors stay where there is room.

        Raises: CapacityError when the device has no room; then the old size is kept.
        """
        assert self._slots is not None
        assert self._residency is not None
        assert self._executor is not None
        if num_slots == self.num_slots:
            return
        self._executor.rest()
        old_slots = self.num_slots
        moved = {item.from_slot: item.to_slot for item in self._residency.resize(num_slots).moves}
        kept = _kept(self._residency.resident(), {new: old for old, new in moved.items()})
        try:
            complete = self._slots.rebuild(num_slots, kept)
        except CapacityError:
            self._residency.resize(old_slots)
            self._residency.drop_all()
            raise
        if not complete:
            self._residency.drop_all()
        log.info("expert slots: %d -> %d, %d kept", old_slots, num_slots, self.num_resident)

    def close(self) -> None:
        """End the threads of the store and of its device."""
        self._branch.close()
        self._device.close()

    def _fill_all(self) -> None:
        """Copy every expert into its slot for good."""
        assert self._residency is not None
        for layer, host in enumerate(self._hosts):
            every = self._residency.admit(layer, range(host.bank.num_experts), ())
            copies = self._transfer.start(layer, [(item.expert, item.slot) for item in every])
            self._transfer.wait(layer, copies)


@dataclass(frozen=True)
class LayerExperts:
    """The routed experts of one layer, wherever they are at the moment."""

    store: DeviceStore
    layer: int

    def add_to(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        shared: Shared | None = None,
    ) -> None:
        """As Experts.add_to: `shared` runs beside the CPU branch and the copies."""
        self.store.run(self.layer, Routed(x, expert_ids, weights, out, shared))


def _kept(resident: Sequence[tuple[int, int, int]], came_from: dict[int, int]) -> list[Kept]:
    return [Kept(came_from.get(slot, slot), slot) for _, _, slot in resident]
