"""Seconds of a layer's branches on the device, taken in eager steps; told to the planner.

Events in a captured graph cannot be read, so one decode step in many is asked for eagerly, and one
of its layers is timed.
"""

from __future__ import annotations

import numpy as np

from ftengine.device.cuda import GpuDevice
from ftengine.experts.policy.planner import Planner, Split
from ftengine.gpu.memory import LINE_BYTES, PinnedBlock
from ftengine.gpu.moe_layer import Marks
from ftengine.gpu.pair_callback import array_at
from ftengine.gpu.stream import Event

EVERY = 256
"""Decode steps from one that is timed to the next; the first ones all are."""
FIRST = 2


class Sampler:
    """Chooses the step and the layer that is timed."""

    def __init__(self, device: GpuDevice, num_layers: int) -> None:
        self._num_layers = num_layers
        driver = device.driver
        self._pinned = PinnedBlock(driver, LINE_BYTES)
        begins, ends = ([Event(driver, timed=True) for _ in range(2)] for _ in range(2))
        self._marks = Marks(begins[0], ends[0], begins[1], ends[1], self._pinned.take(16))
        self._events = (*begins, *ends)
        self._steps = 0
        self._samples = 0
        self._armed = self._used = False

    @property
    def due(self) -> bool:
        """Whether the next decode step should run eagerly."""
        return self._steps < FIRST or self._steps % EVERY == 0

    def begin(self, eager: bool) -> None:
        """A decode step begins; eager: its work is enqueued now, not captured and not replayed."""
        self._armed, self._used = eager and self.due, False
        self._steps += 1

    def marks(self, layer: int) -> Marks | None:
        """Events for this layer, where it is the one to be timed."""
        if not self._armed or layer != self._samples % self._num_layers:
            return None
        self._used = True
        return self._marks

    def tell(self, planner: Planner, has_cpu: bool) -> bool:
        """Correct the rates by what was timed, if anything was. The step's work has ended."""
        used, self._armed, self._used = self._used, False, False
        if not used:
            return False
        layer = self._samples % self._num_layers
        self._samples += 1
        fills, on_cpu = array_at(self._marks.found, np.int32, (4,))[:2].tolist()
        marks = self._marks
        fill_s = marks.fills_end.seconds_since(marks.fills_begin) if fills else 0.0
        cpu_s = 0.0
        if on_cpu and has_cpu:
            cpu_s = marks.cpu_end.seconds_since(marks.cpu_begin)
        if fills or on_cpu:
            planner.observe(layer, Split(fills, on_cpu), fill_s, cpu_s)
        return True

    def close(self) -> None:
        """Give everything back; may be called twice."""
        for event in self._events:
            event.close()
        self._pinned.close()
