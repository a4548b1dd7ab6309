"""A clock that stands still until it is told to go on. Wall and monotonic time are apart.

Use `advance` where only the clock matters, and `drive` where real processes must make progress
between the steps.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class FakeClock:
    """Satisfies ftman.clock.Clock. Units: seconds."""

    def __init__(self, wall: float = 1_700_000_000.0, monotonic: float = 1000.0):
        self._wall = wall
        self._monotonic = monotonic
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def wall(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._sleepers, (self._monotonic + seconds, self._count, future))
        await future

    def advance(self, seconds: float) -> None:
        """Let time pass and wake every sleep that ends in it, in order."""
        self._monotonic += seconds
        self._wall += seconds
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a user or NTP does; no sleep is affected."""
        self._wall += seconds

    async def drive(self, awaitable: Awaitable[T], step_s: float = 0.05) -> T:
        """Run `awaitable` to its end, advancing by `step_s` for every real millisecond."""
        task = asyncio.ensure_future(awaitable)
        while not task.done():
            await asyncio.wait([task], timeout=0.001)
            self.advance(step_s)
        return task.result()
