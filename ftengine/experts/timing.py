"""Seconds of a layer's two branches, as the planner is told them: measured, or simulated.

Deciding with them is policy/planner.py's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ftengine.device.clock import VirtualClock
from ftengine.device.machine import Machine
from ftengine.device.virtual import run_decode_layer
from ftengine.experts.policy.planner import Split
from ftengine.experts.policy.rates import Rates


def rates_of(machine: Machine) -> Rates:
    """The planner's view of a machine."""
    return Rates(
        link_bytes_per_s=machine.link_bytes_per_s,
        host_bytes_per_s=machine.host_bytes_per_s,
        host_left_bytes_per_s=machine.host_left_bytes_per_s,
        link_latency_s=machine.link_latency_s,
        copy_latency_s=machine.copy_latency_s,
        cpu_latency_s=machine.cpu_latency_s,
        device_bytes_per_s=machine.device_bytes_per_s,
    )


@dataclass(frozen=True)
class BranchTimes:
    """Units: seconds of the copies and of the CPU branch; 0 = did not run, or is not known."""

    fill_s: float
    cpu_s: float


class Timing(Protocol):
    """Where the planner's seconds come from."""

    def seconds(
        self, row_bytes: int, num_hits: int, split: Split, measured: BranchTimes
    ) -> BranchTimes:
        """Of one layer that ran with this split; measured: what the wall clock said of it."""


class WallTime:
    """A device whose copies take the time they take."""

    def seconds(
        self, row_bytes: int, num_hits: int, split: Split, measured: BranchTimes
    ) -> BranchTimes:
        """What was measured."""
        return measured


class VirtualTime:
    """The emulated device: wall time of its copies means nothing, so a simulated machine's counts.

    The copies, the CPU beside them and what it has left meanwhile follow device/clock.py.
    """

    def __init__(self, machine: Machine) -> None:
        self._clock = VirtualClock(machine)

    @property
    def total_s(self) -> float:
        """Virtual seconds of all layers that were told about."""
        return self._clock.now_s

    def seconds(
        self, row_bytes: int, num_hits: int, split: Split, measured: BranchTimes
    ) -> BranchTimes:
        """What the same layer takes on the machine."""
        times = run_decode_layer(self._clock, row_bytes, num_hits, split.fills, split.on_cpu)
        return BranchTimes(times.fill_s, times.cpu_s)
