"""The one clock. Wall time is for people and files; monotonic time is for waits and ages."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the manager knows of time. Units: seconds."""

    def wall(self) -> float:
        """Seconds since 1970; may jump."""

    def monotonic(self) -> float:
        """Seconds since some start; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Wait on the monotonic clock."""


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM = SystemClock()


def pause(seconds: float) -> None:
    """Block this thread; for threads and children, never for the event loop."""
    time.sleep(seconds)
