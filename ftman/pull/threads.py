"""Blocking work beside the event loop, never left running behind its caller's back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ftman.waits import to_the_end

T = TypeVar("T")


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run `work` in a thread. A caller that is cancelled, even twice, waits until it has ended.

    Without that, a file could be closed, and its number reused, under a running write; or what was
    being written could be written, and counted, once more.
    """
    loop = asyncio.get_running_loop()
    return await to_the_end(loop.run_in_executor(None, lambda: work(*arguments)))


async def run_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines together; the first error ends the others, and is raised when all ended."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
