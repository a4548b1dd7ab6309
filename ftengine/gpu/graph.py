"""Whole decode steps captured once per batch size, launched with no Python per layer.

What changes from step to step is data in fixed buffers: token ids, positions and page tables go in
through pinned memory, counts and task lists live on the device. What a step enqueues is the
caller's; here are the graphs, the choice of size, and the watchdog over a stuck hand-off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ftengine.errors import EngineError
from ftengine.gpu.hand_off import HandOff
from ftengine.gpu.stream import Event, Graph, Stream, capture
from ftman.clock import SYSTEM, Clock, pause

log = logging.getLogger(__name__)

Enqueue = Callable[[int], None]
"""Puts one step of so many sequences onto the stream; must rejoin every stream that it forks to."""

LIMIT_S = 30.0
"""Far above any step: a step that reads all of a large model once from memory takes seconds."""
_GRACE_S = 2.0
_POLL_S = 50e-6


@dataclass(frozen=True)
class Watch:
    """How long a step may take. Units: seconds; poll_s is a step's possible lateness."""

    limit_s: float = LIMIT_S
    grace_s: float = _GRACE_S
    poll_s: float = _POLL_S
    clock: Clock = SYSTEM


class Watchdog:
    """Waits for the end of what a stream was given; one that does not come is a typed error."""

    def __init__(
        self, stream: Stream, hand_off: HandOff | None = None, watch: Watch | None = None
    ) -> None:
        self._stream = stream
        self.hand_off = hand_off
        self._watch = Watch() if watch is None else watch
        self._ended = Event(stream.driver)
        self._stuck: EngineError | None = None

    def check(self) -> None:
        """Raises: EngineError("gpu_stuck") again, once there was one."""
        if self._stuck is not None:
            raise self._stuck

    def finish(self) -> None:
        """Wait until everything enqueued so far has ended.

        Raises: EngineError("gpu_stuck") when it does not end in time: the results are void, and
        every later call raises the same; the engine must be started again.
        """
        self.check()
        self._stream.record(self._ended)
        if not self._ends_within(self._watch.limit_s):
            self._stuck = self._give_up()
            raise self._stuck
        if self.hand_off is not None:
            self.hand_off.check()

    def close(self) -> None:
        """Give the event back; may be called twice."""
        self._ended.close()

    def _ends_within(self, seconds: float, each_time: Callable[[], None] | None = None) -> bool:
        clock = self._watch.clock
        limit_s = clock.monotonic() + seconds
        while not self._ended.passed:
            if clock.monotonic() > limit_s:
                return False
            if each_time is not None:
                each_time()
            pause(self._watch.poll_s)
        return True

    def _give_up(self) -> EngineError:
        """Say where the step stands, and free the device from it if that can be done."""
        hand_off = self.hand_off
        where = "" if hand_off is None else hand_off.waiting()
        freed = False
        if hand_off is not None and hand_off.by_memory:
            freed = self._ends_within(self._watch.grace_s, hand_off.release)
        error = EngineError(
            f"a step on the GPU did not end within {self._watch.limit_s:g} s"
            + (f"; it waits for the CPU branch {where}" if where else "")
            + ("" if freed else "; the GPU is still busy with it")
            + "; load the model again",
            code="gpu_stuck",
            retryable=True,
        )
        log.error("%s", error.message)
        return error


class StepGraphs:
    """One graph per batch size. A step with fewer sequences uses the next larger one."""

    def __init__(
        self,
        stream: Stream,
        enqueue: Enqueue,
        batch_sizes: tuple[int, ...],
        hand_off: HandOff | None = None,
        watch: Watch | None = None,
    ) -> None:
        if not batch_sizes or list(batch_sizes) != sorted(set(batch_sizes)) or batch_sizes[0] < 1:
            raise ValueError(f"batch sizes must rise from 1 on; got {batch_sizes}")
        self._stream = stream
        self._enqueue = enqueue
        self.batch_sizes = batch_sizes
        self._graphs: dict[int, Graph] = {}
        self._watchdog = Watchdog(stream, hand_off, watch)

    def capture(self) -> None:
        """Make every graph anew: after the buffers they name have changed, and at the start.

        Between steps only. Raises: EngineError; then there are no graphs.
        """
        self.drop()
        try:
            for size in self.batch_sizes:
                self._graphs[size] = self._capture(size)
        except BaseException:
            self.drop()
            raise
        log.info("captured steps of %s sequences", ", ".join(map(str, self.batch_sizes)))

    def drop(self) -> None:
        """Give all graphs back, before what they name is given back. Between steps only."""
        graphs, self._graphs = self._graphs, {}
        for graph in graphs.values():
            graph.close()

    def size_for(self, num_sequences: int) -> int:
        """The captured size that a step of so many sequences runs at. Raises: EngineError."""
        for size in self.batch_sizes:
            if size >= num_sequences:
                return size
        raise EngineError(
            f"a step of {num_sequences} sequences was never captured, the largest is "
            f"{self.batch_sizes[-1]}; allow fewer parallel requests",
            code="gpu_call",
        )

    def run(self, num_sequences: int) -> None:
        """Launch a step and wait for its end. Raises: as Watchdog.finish."""
        self._watchdog.check()
        self._graphs[self.size_for(num_sequences)].launch(self._stream)
        self._watchdog.finish()

    def close(self) -> None:
        """Give everything back; may be called twice."""
        self.drop()
        self._watchdog.close()

    def _capture(self, size: int) -> Graph:
        return capture(self._stream, lambda: self._enqueue(size))
