"""Dividing memory anew while requests are in flight: expert slots and KV pages.

Called by the engine thread between steps, when nothing is in flight.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from ftengine.cache.policy.pages import PageAllocator
from ftengine.device.host_memory import available_bytes
from ftengine.errors import CapacityError, RequestError
from ftengine.experts.counters import ExpertCounters
from ftengine.experts.gpu import DeviceStore
from ftengine.experts.policy.budget import MemoryNeeds, follow_free_memory
from ftengine.protocol import CacheStats, ExpertStats, MemoryRequest, MemoryState
from ftengine.runtime.park import NOT_PARKED, Parked
from ftengine.runtime.placement import Placement, check_slots, following
from ftengine.runtime.runner import Runner
from ftengine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)


@dataclass
class MemoryManager:
    """What may be resized. experts_per_token: 0 for a dense model.

    automatic: the slots follow the device's free memory, until somebody asks for a number.
    """

    placement: Placement
    runner: Runner
    scheduler: Scheduler
    pages: PageAllocator
    experts_per_token: int
    automatic: bool = False
    parked: Parked = NOT_PARKED

    @property
    def counters(self) -> ExpertCounters:
        """What happened to routed experts so far."""
        return self.placement.store.counters

    def apply(self, request: MemoryRequest) -> MemoryState:
        """Do what is asked, or change nothing. Raises: RequestError, CapacityError with numbers."""
        before = self.scheduler.num_preemptions
        with torch.inference_mode():
            if request.expert_slots is not None:
                self._resize_slots(request.expert_slots)
                self.automatic = False
            if request.kv_bytes is not None:
                self._resize_kv(request.kv_bytes)
        return self.state(self.scheduler.num_preemptions - before)

    @property
    def follows(self) -> bool:
        """Whether `follow` may ever do something."""
        return self.automatic and isinstance(self.placement.store, DeviceStore)

    def follow(self) -> bool:
        """Give slots back when others want the device's memory, take more when there is a lot.

        Returns whether the number of slots changed.
        """
        store, device = self.placement.store, self.placement.device
        if not self.follows or not isinstance(store, DeviceStore) or device is None:
            return False
        needs = MemoryNeeds(
            fixed_bytes=0,
            kv_bytes_per_token=0,
            context_tokens=0,
            state_bytes=0,
            slot_bytes=store.slot_bytes,
            num_experts_total=store.num_experts,
            min_slots=self.experts_per_token,
        )
        before = store.num_slots
        wanted = follow_free_memory(before, device.free_bytes, needs, following(device))
        if wanted == before:
            return False
        try:
            with torch.inference_mode():
                store.resize(wanted)
        except CapacityError as error:
            log.warning("expert slots stay at %d: %s", before, error.message)
            return False
        return True

    def state(self, preempted: int = 0) -> MemoryState:
        """How memory is divided now."""
        store, device = self.placement.store, self.placement.device
        slots = store.num_slots if isinstance(store, DeviceStore) else 0
        return MemoryState(
            expert_slots=slots,
            slot_bytes=store.slot_bytes if isinstance(store, DeviceStore) else 0,
            kv_bytes=self.runner.pool.total_bytes,
            kv_pages=self.pages.num_pages,
            device_bytes=0 if device is None else device.total_bytes,
            device_free_bytes=0 if device is None else device.free_bytes,
            preempted=preempted,
        )

    def experts(self, total_experts: int) -> ExpertStats | None:
        """Slots and counts for /info; None for a dense model."""
        store = self.placement.store
        if not store.counters.layers:
            return None
        counted = store.counters.total()
        on_device = store if isinstance(store, DeviceStore) else None
        return ExpertStats(
            strategy=self.placement.strategy,
            slots=0 if on_device is None else on_device.num_slots,
            resident=0 if on_device is None else on_device.num_resident,
            total=total_experts * len(store.counters.layers),
            slot_bytes=0 if on_device is None else on_device.slot_bytes,
            **vars(counted),
        )

    def cache(self) -> CacheStats:
        """The prefix cache for /info."""
        reuse, states = self.scheduler.reuse, self.runner.states
        tree, counters = reuse.tree, reuse.counters
        parking = self.parked.parking
        return CacheStats(
            enabled=reuse.limits.active,
            pages=tree.num_pages,
            checkpoints_used=tree.num_checkpoints,
            checkpoints=0 if states is None else states.num_checkpoints,
            checkpoint_bytes=0 if states is None else states.bytes_per_slot,
            looked_up_tokens=counters.looked_up,
            hit_tokens=counters.hit,
            recomputed_tokens=counters.recomputed,
            evicted_pages=tree.evicted_pages,
            evicted_checkpoints=tree.evicted_checkpoints,
            **({} if parking is None else vars(parking.stats())),
        )

    def _resize_slots(self, num_slots: int) -> None:
        store = self.placement.store
        if not isinstance(store, DeviceStore):
            raise RequestError(
                "this engine computes every expert on the CPU and has no expert slots; load the "
                "model with another strategy"
            )
        if num_slots > store.num_experts:
            raise RequestError(
                f"{num_slots} expert slots asked for; the model has {store.num_experts} experts"
            )
        check_slots(num_slots, store, self.experts_per_token, self.placement.strategy)
        self._check_device((num_slots - store.num_slots) * store.slot_bytes)
        store.resize(num_slots)

    def _resize_kv(self, kv_bytes: int) -> None:
        old = self.runner.pool
        num_pages = kv_bytes // old.bytes_per_page
        new_bytes = num_pages * old.bytes_per_page
        more = new_bytes - old.total_bytes
        on_device = self.placement.holds_pools
        self._check_device(new_bytes if on_device else more)  # old and new lie side by side there
        if not on_device:
            _check_host(new_bytes if more > 0 else 0)
        # made first: when this fails nothing has changed yet
        pool = old.like(max(num_pages, 1))
        self.runner.copy(self.scheduler.take_copies())  # they speak of the old pages
        places = self.scheduler.resize_pages(num_pages)
        self.runner.copy(self.scheduler.take_copies())  # what gave way is parked from there
        pool.take_pages(old, places)
        self.runner.replace_pool(pool)
        if self.placement.device is not None and not on_device:
            self.placement.device.reserve(more)

    def _check_device(self, more_bytes: int) -> None:
        device = self.placement.device
        if device is not None and more_bytes > device.free_bytes:
            raise CapacityError(
                f"{more_bytes} bytes more are needed on the device and {device.free_bytes} of its "
                f"{device.total_bytes} are free; ask for less, or shrink the other side first "
                f"(expert slots or KV)",
                code="device_memory",
            )


def _check_host(need_bytes: int) -> None:
    have = available_bytes()
    if have is not None and need_bytes > have:
        raise CapacityError(
            f"the new KV pages need {need_bytes} bytes and {have} are free; ask for less"
        )
