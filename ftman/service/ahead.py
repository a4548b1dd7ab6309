"""An engine asked for while its prompt is still being made, so that neither waits for the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

from ftman.chat.types import Waiting
from ftman.supervisor.supervisor import Lease

Taking = Callable[[contextlib.AsyncExitStack], AsyncGenerator[Waiting | Lease, None]]
"""Waits for a lease, which the stack gives back."""


class Ahead:
    """A lease that is being taken from now on. Its news waits until it is asked for."""

    def __init__(self, take: Taking):
        self._stack = contextlib.AsyncExitStack()
        self._news: asyncio.Queue[Waiting | Lease | None] = asyncio.Queue()
        self._heard = asyncio.Event()
        self._task = asyncio.ensure_future(self._take(take(self._stack)))

    async def heard(self) -> None:
        """Return when the first news is there: from then on an engine is being started."""
        await self._heard.wait()

    async def items(self) -> AsyncGenerator[Waiting | Lease, None]:
        """What taking it brings, from its beginning.   Raises: FtmanError, as taking it does."""
        while (item := await self._news.get()) is not None:
            yield item
        await self._task

    async def aclose(self) -> None:
        """Give the lease back, or up; may be called twice."""
        if not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        elif not self._task.cancelled():
            self._task.exception()  # told already, or its prompt was bad too
        await self._stack.aclose()

    async def _take(self, items: AsyncGenerator[Waiting | Lease, None]) -> None:
        try:
            async with contextlib.aclosing(items):
                async for item in items:
                    self._put(item)
        finally:
            self._put(None)

    def _put(self, item: Waiting | Lease | None) -> None:
        self._news.put_nowait(item)
        self._heard.set()
