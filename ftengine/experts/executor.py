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
from ftengine.experts.partials import PairKernel, Routed, merge, slot_rows
from ftengine.experts.policy.planner import Planner, Split
from ftengine.experts.policy.residency import Residency
from ftengine.experts.slots import SlotPool
from ftengine.experts.transfer import Transfer
from ftengine.experts.ways import CPU, DECODE, STREAM, WayChooser

log = logging.getLogger(__name__)

_NO_CPU = ("fetch", "resident")


@dataclass(frozen=True)
class ExecutorParts:
    """What a step works with. timed: the device's seconds mean something to the planner."""

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
    timed: bool


class Executor:
    """Runs the routed experts of every layer, on the engine thread."""

    def __init__(self, parts: ExecutorParts) -> None:
        self._parts = parts
        self._way = DECODE

    def run(self, layer: int, routed: Routed) -> None:
        """Add the weighted sum of each token's experts to routed.out.

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
            self._way = self._parts.ways.way(routed)
            if self._way == STREAM:
                stream.begin(self._parts.ways.buffer_experts)
        if stream.active:
            stream.run(layer, routed)
        else:
            self._step(layer, routed)

    def _step(self, layer: int, routed: Routed) -> None:
        parts, counters = self._parts, self._parts.counters[layer]
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
            self._one_pass(layer, routed, hits, fill, split)
        elif parts.planner.strategy in _NO_CPU:
            self._passes(layer, routed, hits, fill, rest)
        elif not hits and not fill:
            counters.on_cpu += len(rest)
            parts.hosts[layer].will_read(rest)
            parts.kernel.add_all(routed, routed.expert_ids, parts.hosts[layer].bank)
        else:
            self._both(layer, routed, hits, fill, rest)

    def _one_pass(
        self,
        layer: int,
        routed: Routed,
        hits: Mapping[int, int],
        fill: Sequence[int],
        split: Split,
    ) -> None:
        """Everything on the device at once; the kernel sums."""
        slots, fill_s = self._fill(layer, hits, fill)
        rows = slot_rows(routed, slots)
        self._parts.kernel.add_all(routed, rows, self._parts.slots.bank(layer))
        self._observe(layer, split, fill_s, 0.0)

    def _both(
        self,
        layer: int,
        routed: Routed,
        hits: Mapping[int, int],
        fill: Sequence[int],
        on_cpu: Sequence[int],
    ) -> None:
        """The CPU branch first, then the device beside it."""
        parts = self._parts
        outputs = torch.empty(routed.num_pairs, routed.x.shape[1])
        parts.branch.start(parts.hosts[layer], routed, on_cpu, outputs)
        slots, fill_s = self._fill(layer, hits, fill)
        parts.kernel.compute(routed, slots, parts.slots.bank(layer), outputs)
        cpu_s = parts.branch.finish()
        merge(routed, outputs)
        parts.counters[layer].on_cpu += len(on_cpu)
        self._observe(layer, Split(len(fill), len(on_cpu)), fill_s, cpu_s)

    def _passes(
        self,
        layer: int,
        routed: Routed,
        hits: Mapping[int, int],
        fill: Sequence[int],
        rest: Sequence[int],
    ) -> None:
        """More experts than slots and no CPU: the device takes them in turns."""
        parts = self._parts
        outputs = torch.empty(routed.num_pairs, routed.x.shape[1])
        kept: Mapping[int, int] = hits
        while True:
            slots, _ = self._fill(layer, kept, fill)
            parts.kernel.compute(routed, slots, parts.slots.bank(layer), outputs)
            if not rest:
                break
            room = parts.residency.available(())
            fill, rest, kept = rest[:room], rest[room:], {}
            parts.counters[layer].passes += 1
        merge(routed, outputs)

    def _fill(
        self, layer: int, hits: Mapping[int, int], fill: Sequence[int]
    ) -> tuple[dict[int, int], float]:
        """Slots of hits and fills, once the fills can be read, and the seconds waited."""
        slots = dict(hits)
        if not fill:
            return slots, 0.0
        parts = self._parts
        admitted = parts.residency.admit(layer, fill, set(hits.values()))
        places = {item.expert: item.slot for item in admitted}
        event = parts.transfer.start(layer, places.items())
        parts.counters[layer].fills += len(places)
        return slots | places, parts.transfer.wait(layer, event)

    def _observe(self, layer: int, split: Split, fill_s: float, cpu_s: float) -> None:
        if self._parts.timed:
            self._parts.planner.observe(layer, split, fill_s, cpu_s)

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
