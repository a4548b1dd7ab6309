"""What an accelerator offers to the expert executor: an arena, one copy stream, events.

Computing is the kernels' business; here is memory and the order of things. The compute stream is
whatever the engine thread enqueues; copies run beside it on the copy stream, in their own order.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Event(Protocol):
    """A point of the copy stream; opaque. Made by Device.record, given to Device.wait."""


class Device(Protocol):
    """One accelerator. Used from the engine thread only."""

    name: str
    total_bytes: int

    @property
    def free_bytes(self) -> int:
        """What allocate can still give."""

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Memory of the device, 4096-aligned, contents undefined. Shape: uint8 [num_bytes].

        Raises: CapacityError with need and have.
        """

    def release(self, memory: torch.Tensor) -> None:
        """Give back what allocate gave; nobody may use it any more."""

    def reserve(self, num_bytes: int) -> None:
        """Account for memory that somebody else takes from the device; negative gives it back.

        Raises: CapacityError with need and have.
        """

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueue a copy on the copy stream, behind all compute work enqueued so far.

        Until an event recorded after it has been waited for, reading `target` is an error.
        Shape: uint8 of equal length; source is host memory and must stay as it is until then.
        """

    def record(self) -> Event:
        """A point behind all copies enqueued so far."""

    def wait(self, event: Event) -> None:
        """Everything computed from now on sees the copies before `event`."""

    def passed(self, event: Event) -> bool:
        """Whether the copies before `event` have ended; never waits, makes nothing visible."""

    def move(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy inside the device, in order with compute. Shape: uint8 of equal length."""

    def close(self) -> None:
        """End the copy stream; may be called twice."""
