"""One MoE layer of one step: look up, divide, start the CPU, fill, compute, merge.

What to fill and who leaves is decided in policy/; whole layers at a time is layer_stream.py's way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ftengine.experts.branch import CpuBranch
from ftengine.experts.counters import LayerCounters
from ftengine.experts.host import HostBank
from ftengine.experts.layer_stream import LayerStream
from ftengine.experts.partials import PairKernel, Routed, SharedWork, merge, slot_rows
from ftengine.experts.policy.planner import Planner, Split
from ftengine.experts.policy.residency import Residency
from ftengine.experts.slots import SlotPool
from ftengine.experts.timing import BranchTimes, Timing
from ftengine.experts.transfer import Transfer
from ftengine.experts.ways import CPU, DECODE, STREAM, WayChooser
from ftman.clock import Clock

log = logging.getLogger(__name__)

_NO_CPU = ("fetch", "resident")


@dataclass(frozen=True)
class ExecutorParts:
    """What a step works with. timing: whose seconds teach the planner."""

    hosts: Sequence[HostBank]
    counters: Sequence[LayerCounters]
    slots: SlotPool
    residency: Residency
    planner: Planner
    transfer: Transfer
    branch: CpuBranch
    kernel: PairKernel
    stream: LayerStream
    ways: WayChooser
    timing: Timing
    clock: Clock


@dataclass(frozen=True)
class _Work:
    """One layer of one step."""

    layer: int
    routed: Routed
    shared: SharedWork


class Executor:
    """Runs the routed experts of every layer, on the engine thread."""

    def __init__(self, parts: ExecutorParts) -> None:
        self._parts = parts
        self._way = DECODE

    def run(self, layer: int, routed: Routed) -> None:
        """Add the weighted sum of each token's experts to routed.out, then the shared experts.

        After an error nothing is in flight and the slots are empty.
        """
        if routed.num_tokens == 0:
            return
        try:
            self._run(layer, routed)
        except BaseException:
            self._recover()
            raise

    def rest(self) -> None:
        """Give back what a prefill still holds; between steps, before slots are changed."""
        self._parts.stream.end()

    def _run(self, layer: int, routed: Routed) -> None:
        stream = self._parts.stream
        if layer == 0:
            stream.end()
            self._way = self._parts.ways.way(*routed.expert_ids.shape)
            if self._way == STREAM:
                stream.begin(self._parts.ways.buffer_experts)
        shared = SharedWork(self._parts.kernel, routed)
        if stream.active:
            stream.run(layer, routed, shared)
        else:
            self._step(_Work(layer, routed, shared))
        shared.add()

    def _step(self, work: _Work) -> None:
        parts, layer, routed = self._parts, work.layer, work.routed
        counters = parts.counters[layer]
        found = parts.residency.lookup(layer, routed.flat_ids().tolist())
        hits = dict(found.hits)
        counters.hits += len(hits)
        counters.misses += len(found.misses)
        room = parts.residency.available(hits.values())
        split = Split(0, len(found.misses))
        if self._way != CPU:
            split = parts.planner.split(
                layer, split.on_cpu, routed.num_tokens, room, len(found.hits), signs=found.signs
            )
        fill, rest = found.fill_order[: split.fills], found.fill_order[split.fills :]
        if not rest:
            self._one_pass(work, hits, fill)
        elif parts.planner.strategy in _NO_CPU:
            self._passes(work, hits, fill, rest)
        elif not hits and not fill:
            self._cpu_alone(work, rest)
        else:
            self._both(work, hits, fill, rest)

    def _one_pass(self, work: _Work, hits: Mapping[int, int], fill: Sequence[int]) -> None:
        """Everything on the device at once; the kernel sums."""
        slots, fill_s = self._fill(work, hits, fill)
        rows = slot_rows(work.routed, slots)
        self._parts.kernel.add_all(work.routed, rows, self._parts.slots.bank(work.layer))
        self._observe(work, len(hits), Split(len(fill), 0), BranchTimes(fill_s, 0.0))

    def _cpu_alone(self, work: _Work, on_cpu: Sequence[int]) -> None:
        """Nothing for the device: the kernel reads the host bank and sums."""
        parts, host = self._parts, self._parts.hosts[work.layer]
        parts.counters[work.layer].on_cpu += len(on_cpu)
        host.will_read(on_cpu)
        started = parts.clock.monotonic()
        parts.kernel.add_all(work.routed, work.routed.expert_ids, host.bank)
        cpu_s = parts.clock.monotonic() - started
        self._observe(work, 0, Split(0, len(on_cpu)), BranchTimes(0.0, cpu_s))

    def _both(
        self, work: _Work, hits: Mapping[int, int], fill: Sequence[int], on_cpu: Sequence[int]
    ) -> None:
        """The CPU branch first, then the device beside it."""
        parts, routed, layer = self._parts, work.routed, work.layer
        outputs = torch.empty(routed.num_pairs, routed.x.shape[1])
        parts.branch.start(parts.hosts[layer], routed, on_cpu, outputs)
        slots, fill_s = self._fill(work, hits, fill)
        parts.kernel.compute(routed, slots, parts.slots.bank(layer), outputs)
        cpu_s = parts.branch.finish()
        merge(routed, outputs)
        parts.counters[layer].on_cpu += len(on_cpu)
        split = Split(len(fill), len(on_cpu))
        self._observe(work, len(hits), split, BranchTimes(fill_s, cpu_s))

    def _passes(
        self, work: _Work, hits: Mapping[int, int], fill: Sequence[int], rest: Sequence[int]
    ) -> None:
        """More experts than slots and no CPU: the device takes them in turns."""
        parts, routed, layer = self._parts, work.routed, work.layer
        outputs = torch.empty(routed.num_pairs, routed.x.shape[1])
        kept: Mapping[int, int] = hits
        while True:
            slots, _ = self._fill(work, kept, fill)
            parts.kernel.compute(routed, slots, parts.slots.bank(layer), outputs)
            if not rest:
                break
            room = parts.residency.available(())
            fill, rest, kept = rest[:room], rest[room:], {}
            parts.counters[layer].passes += 1
        merge(routed, outputs)

    def _fill(
        self, work: _Work, hits: Mapping[int, int], fill: Sequence[int]
    ) -> tuple[dict[int, int], float]:
        """Slots of hits and fills once the fills can be read, and the seconds of their copies.

        The shared experts are computed while the copies and the CPU branch are under way.
        """
        slots = dict(hits)
        if not fill:
            work.shared.compute()
            return slots, 0.0
        parts, layer = self._parts, work.layer
        admitted = parts.residency.admit(layer, fill, set(hits.values()))
        places = {item.expert: item.slot for item in admitted}
        copies = parts.transfer.start(layer, places.items())
        parts.counters[layer].fills += len(places)
        work.shared.compute()
        return slots | places, parts.transfer.wait(layer, copies)

    def _observe(self, work: _Work, num_hits: int, split: Split, measured: BranchTimes) -> None:
        """Tell the planner. A wide step is computing, not reading: its seconds are no rate."""
        planner = self._parts.planner
        if work.routed.num_tokens > planner.rates.cpu_free_tokens or split == Split(0, 0):
            return
        row_bytes = self._parts.hosts[work.layer].bank.row_bytes
        seen = self._parts.timing.seconds(row_bytes, num_hits, split, measured)
        planner.observe(work.layer, split, seen.fill_s, seen.cpu_s)

    def _recover(self) -> None:
        """Leave nothing in flight and trust no slot: host memory holds the truth."""
        parts = self._parts
        try:
            parts.branch.finish()
        except Exception as error:  # the first error is the one that is told
            log.warning("the CPU branch failed too: %s", error)
        try:
            parts.transfer.drain()
        finally:
            parts.stream.forget()
            parts.residency.drop_all()
