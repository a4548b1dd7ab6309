"""Decode steps on a device: one captured graph per batch size and width of the page table.

What a step enqueues is the caller's. The first step of a key runs eagerly, which loads its kernels;
the second is captured. A step that cannot be captured runs eagerly, and says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ftengine.errors import EngineError
from ftengine.gpu.graph import Watchdog
from ftengine.gpu.stream import Graph, Stream, capture

log = logging.getLogger(__name__)

_MOST_GRAPHS = 64
"""Then all go and are captured anew as they are needed; a batch size and a width are few."""


@dataclass(frozen=True)
class StepKey:
    """What a graph is made for. pages: width of the page table."""

    sequences: int
    pages: int


Enqueue = Callable[[], bool]
"""Puts a step on the stream. Whether all of it was work of the stream, as a graph needs it."""


class DecodeSteps:
    """Runs steps and keeps their graphs."""

    def __init__(self, stream: Stream, watchdog: Watchdog) -> None:
        self._stream = stream
        self._watchdog = watchdog
        self._graphs: dict[StepKey, Graph] = {}
        self._warm: set[StepKey] = set()
        self.eager_because = ""

    def is_eager(self, key: StepKey, may_capture: bool) -> bool:
        """Whether `run` would enqueue the step once more, to run once."""
        return not may_capture or key not in self._warm or bool(self.eager_because)

    def run(self, key: StepKey, enqueue: Enqueue, may_capture: bool) -> None:
        """One step, and wait for its end. Raises: as Watchdog.finish, and what enqueue raises."""
        self._watchdog.check()
        graph = None
        if not self.is_eager(key, may_capture):
            graph = self._graphs.get(key) or self._capture(key, enqueue)
        if graph is not None:
            graph.launch(self._stream)
        elif enqueue():
            self._warm.add(key)
        else:
            self._stay_eager("a part of it is computed by torch")
        self._watchdog.finish()

    def forget(self) -> None:
        """Drop all graphs, before what they name is given back. Between steps only."""
        graphs, self._graphs = self._graphs, {}
        self._warm.clear()
        for graph in graphs.values():
            graph.close()

    def described(self) -> str:
        """How decode steps run, in words."""
        if self.eager_because:
            return f"launch by launch: {self.eager_because}"
        return "captured in graphs" if self._graphs else "captured at the second token"

    def _capture(self, key: StepKey, enqueue: Enqueue) -> Graph | None:
        if len(self._graphs) >= _MOST_GRAPHS:
            self.forget()
            self._warm.add(key)

        def enqueue_only() -> None:
            enqueue()

        try:
            graph = capture(self._stream, enqueue_only)
        except EngineError as error:
            self._stay_eager(error.message)
            return None
        self._graphs[key] = graph
        log.info("captured the step of %d sequences, %d pages", key.sequences, key.pages)
        return graph

    def _stay_eager(self, reason: str) -> None:
        if not self.eager_because:
            self.eager_because = reason
            log.warning("decode steps run launch by launch, not as one graph: %s", reason)
