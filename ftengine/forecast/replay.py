"""Routing traces through residency, planner and virtual clock: the decode loop without weights.

The plans are those of the executor; only the times are simulated, and every figure says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ftengine.device.clock import LINK, VirtualClock
from ftengine.device.machine import Machine
from ftengine.device.virtual import run_decode_layer
from ftengine.experts.policy.reference import Divider
from ftengine.experts.policy.residency import Lookup, Residency
from ftengine.experts.traces import Token


@dataclass
class Totals:
    """Sums over a replay. Units: virtual seconds of all MoE layers, bytes over the link."""

    seconds: float = 0.0
    hits: int = 0
    misses: int = 0
    fills: int = 0
    on_cpu: int = 0
    link_bytes: float = 0.0
    step_misses: list[int] = field(default_factory=list)

    @property
    def miss_rate(self) -> float:
        """Share of routed experts that were not resident."""
        return self.misses / max(self.hits + self.misses, 1)

    def late_miss_rate(self, skip: int) -> float:
        """Miss rate without the first `skip` steps, in which a cold cache fills."""
        steps = len(self.step_misses)
        each = (self.hits + self.misses) / max(steps, 1)
        late = self.step_misses[skip:]
        return sum(late) / max(len(late) * each, 1e-9)


class Replay:
    """One model on one machine: a residency that lasts over several calls of `run`."""

    def __init__(
        self, machine: Machine, residency: Residency, row_bytes: int, divider: Divider
    ) -> None:
        self.residency = residency
        self.totals = Totals()
        self._machine = machine
        self._row_bytes = row_bytes
        self._divider = divider

    def run(self, steps: tuple[Token, ...]) -> Totals:
        """Decode these tokens; returns the totals of this call alone."""
        before, self.totals = self.totals, Totals()
        clock = VirtualClock(self._machine)
        for token in steps:
            missed = 0
            for layer, experts in enumerate(token):
                found = self.residency.lookup(layer, experts)
                missed += len(found.misses)
                self._layer(clock, layer, found)
            self.totals.step_misses.append(missed)
        self.totals.seconds = clock.now_s
        self.totals.link_bytes = clock.link_bytes
        assert clock.busy_s[LINK] <= clock.now_s * (1 + 1e-9)
        done, self.totals = self.totals, before
        return done

    def _layer(self, clock: VirtualClock, layer: int, found: Lookup) -> None:
        hits, misses = len(found.hits), len(found.misses)
        in_use = {slot for _, slot in found.hits}
        room = self.residency.available(in_use)
        split = self._divider.split(layer, misses, 1, room, hits, found.signs)
        self.residency.admit(layer, found.fill_order[: split.fills], in_use)
        times = run_decode_layer(clock, self._row_bytes, hits, split.fills, split.on_cpu)
        if misses:
            self._divider.observe(layer, split, times.fill_s, times.cpu_s)
        totals = self.totals
        totals.hits += hits
        totals.misses += misses
        totals.fills += split.fills
        totals.on_cpu += split.on_cpu
