"""Virtual time: a deterministic event simulation of link, CPU and device. No torch, no real clock.

Operations wait for others and for their resource (a queue each, in order of submission). The link
runs at its full rate; the CPU branch reads the same host memory and gets what is left while the
link copies. What an MoE layer submits lives in virtual.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ftengine.device.machine import Machine

CLOCK_NAME = "virtual"
"""Every figure that comes from here carries this word."""
LINK, CPU, DEVICE = 0, 1, 2
_NUM_RESOURCES = 3
_DONE_BYTES = 1e-6


@dataclass
class Operation:
    """One piece of work. amount: bytes on LINK and CPU, seconds on DEVICE; latency comes first."""

    resource: int
    amount: float
    latency_s: float
    after: tuple[Operation, ...] = ()
    started_s: float = -1.0
    finished_s: float = -1.0

    @property
    def seconds(self) -> float:
        """From its start on the resource to its end."""
        return self.finished_s - self.started_s


@dataclass
class VirtualClock:
    """Time, three queues, and seconds during which each resource was busy.

    overlap False makes everything run one after the other: the loss without overlap.
    """

    machine: Machine
    overlap: bool = True
    now_s: float = 0.0
    busy_s: list[float] = field(default_factory=lambda: [0.0] * _NUM_RESOURCES)
    link_bytes: float = 0.0
    _queues: list[list[Operation]] = field(default_factory=lambda: [[] for _ in range(3)])
    _running: list[Operation | None] = field(default_factory=lambda: [None] * _NUM_RESOURCES)
    _wait_s: list[float] = field(default_factory=lambda: [0.0] * _NUM_RESOURCES)
    _left: list[float] = field(default_factory=lambda: [0.0] * _NUM_RESOURCES)

    def submit(
        self,
        resource: int,
        amount: float,
        latency_s: float = 0.0,
        after: Iterable[Operation] = (),
    ) -> Operation:
        """Queue work behind what the resource has already; it starts when `after` is done."""
        operation = Operation(resource, amount, latency_s, tuple(after))
        self._queues[resource].append(operation)
        if resource == LINK:
            self.link_bytes += amount
        return operation

    def run(self) -> float:
        """Let everything submitted finish. Returns the time.

        Raises: RuntimeError when operations wait for one that was never submitted here.
        """
        while self._start():
            self._advance()
        if any(self._queues):
            raise RuntimeError("operations wait for one another, or for one of another clock")
        return self.now_s

    def _start(self) -> bool:
        running = self._running
        for resource in range(_NUM_RESOURCES):
            queue = self._queues[resource]
            if running[resource] is not None or not queue:
                continue
            if not self.overlap and any(other is not None for other in running):
                continue
            if all(other.finished_s >= 0.0 for other in queue[0].after):
                operation = queue.pop(0)
                operation.started_s = self.now_s
                running[resource] = operation
                self._wait_s[resource] = operation.latency_s
                self._left[resource] = operation.amount
        return any(operation is not None for operation in running)

    def _rates(self) -> tuple[float, float, float]:
        machine = self.machine
        copying = self._running[LINK] is not None and self._wait_s[LINK] <= 0.0
        host = machine.host_left_bytes_per_s if copying else machine.host_bytes_per_s
        return (machine.link_bytes_per_s, host, 1.0)

    def _advance(self) -> None:
        """Go to the next moment at which something ends or leaves its latency."""
        rates = self._rates()
        step = float("inf")
        for resource, operation in enumerate(self._running):
            if operation is None:
                continue
            if self._wait_s[resource] > 0.0:
                step = min(step, self._wait_s[resource])
            elif self._left[resource] <= 0.0:
                step = 0.0
            elif rates[resource] > 0.0:
                step = min(step, self._left[resource] / rates[resource])
        if step == float("inf"):
            raise RuntimeError("nothing can go on: every running operation has a rate of zero")
        self.now_s += step
        for resource, operation in enumerate(self._running):
            if operation is not None:
                self._pass(resource, operation, step, rates[resource])

    def _pass(self, resource: int, operation: Operation, step: float, rate: float) -> None:
        self.busy_s[resource] += step
        if self._wait_s[resource] > 0.0:
            left = self._wait_s[resource] - step
            self._wait_s[resource] = left if left > 1e-15 else 0.0
            if self._wait_s[resource] > 0.0 or self._left[resource] > 0.0:
                return
        else:
            self._left[resource] -= step * rate
        if self._left[resource] <= _DONE_BYTES * (1e-6 if resource == DEVICE else 1.0):
            operation.finished_s = self.now_s
            operation.after = ()  # a finished operation keeps no history alive
            self._running[resource] = None
