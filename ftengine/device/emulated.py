"""The emulated accelerator, numerics face: real bytes, real races, no time.

Copies run on a worker thread with seeded random delays into a staging buffer; they become visible
when an event behind them is waited for, and not before. A copy's target holds NaN bytes from the
moment it is enqueued, so that whoever reads without waiting, or reads a slot that was recycled
under his feet, computes NaN. Virtual time is clock.py's business.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from ftengine.device.base import Event
from ftengine.device.torch_device import page_aligned
from ftengine.errors import CapacityError, EngineError

POISON = 0xFF
"""A byte that reads as NaN in every float format and in the scales of every quantised one."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class EmulatedSettings:
    """Units: bytes; seconds. Every delay_every-th copy or so is late by up to max_delay_s."""

    memory_bytes: int
    seed: int = 0
    delay_every: int = 8
    max_delay_s: float = 0.0002


@dataclass(eq=False)
class EmulatedEvent:
    """A point of the copy stream; done once the worker has passed it."""

    number: int
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class _Copy:
    number: int
    target: Bytes
    source: Bytes
    staged: Bytes | None = None


class EmulatedDevice:
    """Device. One engine thread; the worker touches only sources and staging buffers.

    others_bytes: memory that other programs take from it, without asking.
    """

    name = "emulated"

    def __init__(self, settings: EmulatedSettings) -> None:
        self.total_bytes = settings.memory_bytes
        self._settings = settings
        self._random = random.Random(settings.seed)
        self._taken_bytes = 0
        self._failures = 0
        self.others_bytes = 0
        self._number = 0
        self._pending: deque[_Copy] = deque()
        self._work: queue.SimpleQueue[_Copy | EmulatedEvent | None] = queue.SimpleQueue()
        self._broken: BaseException | None = None
        self._worker: threading.Thread | None = None

    @property
    def free_bytes(self) -> int:
        """What allocate can still give."""
        return self.total_bytes - self._taken_bytes - self.others_bytes

    def fail_allocations(self, count: int) -> None:
        """Refuse the next `count` allocations, whatever is free; for tests."""
        self._failures = count

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Poisoned memory. Raises: CapacityError with need and have."""
        if self._failures > 0:
            self._failures -= 1
            raise CapacityError(
                f"the emulated device refused {num_bytes} bytes as it was told to; try again",
                code="device_memory",
                retryable=True,
            )
        self.reserve(num_bytes)
        memory = page_aligned(num_bytes)
        memory.numpy()[:] = POISON
        return memory

    def release(self, memory: torch.Tensor) -> None:
        """Give back what allocate gave."""
        self._taken_bytes -= memory.numel()

    def reserve(self, num_bytes: int) -> None:
        """Account for memory taken elsewhere. Raises: CapacityError with need and have."""
        if num_bytes > self.free_bytes:
            raise CapacityError(
                f"the device needs {num_bytes} bytes more and has {self.free_bytes} of "
                f"{self.total_bytes} free; ask for fewer expert slots or a smaller context",
                code="device_memory",
            )
        self._taken_bytes += num_bytes

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy; the target is poisoned now and filled when it is waited for."""
        self._start()
        place = target.numpy()
        place[:] = POISON
        self._number += 1
        item = _Copy(self._number, place, source.numpy())
        self._pending.append(item)
        self._work.put(item)

    def record(self) -> Event:
        """A point behind all copies enqueued so far."""
        self._start()
        event = EmulatedEvent(self._number)
        self._work.put(event)
        return event

    def wait(self, event: Event) -> None:
        """Block until the worker passed `event`, then publish the copies before it.

        Raises: EngineError when the worker died.
        """
        assert isinstance(event, EmulatedEvent)
        event.done.wait()
        if self._broken is not None:
            raise EngineError(f"the copy stream failed: {self._broken}", code="copy_failed")
        while self._pending and self._pending[0].number <= event.number:
            item = self._pending.popleft()
            assert item.staged is not None, "a copy before a passed event is staged"
            item.target[:] = item.staged

    def passed(self, event: Event) -> bool:
        """Whether the worker has passed `event`."""
        assert isinstance(event, EmulatedEvent)
        return event.done.is_set()

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy inside the device, at once."""
        target.numpy()[:] = source.numpy()

    def close(self) -> None:
        """End the worker; may be called twice."""
        worker, self._worker = self._worker, None
        if worker is not None:
            self._work.put(None)
            worker.join()

    def _start(self) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name="copies", daemon=True)
            self._worker.start()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            if isinstance(item, EmulatedEvent):
                item.done.set()
                continue
            try:
                self._stage(item)
            except Exception as error:  # the root of this thread; wait() reports it
                self._broken = error

    def _stage(self, item: _Copy) -> None:
        if self._random.randrange(self._settings.delay_every) == 0:
            time.sleep(self._random.random() * self._settings.max_delay_s)
        item.staged = item.source.copy()
