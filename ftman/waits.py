"""Waits on the event loop: no longer than so long, or to the end. They lose no cancellation."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import Awaitable
from typing import TypeVar

from ftman.clock import SYSTEM, Clock

T = TypeVar("T")


async def wait_within(awaitable: Awaitable[object], seconds: float, clock: Clock) -> bool:
    """Wait for something for at most `seconds` of `clock`, then cancel it; whether it came."""
    wanted = asyncio.ensure_future(awaitable)
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait([wanted, timer], return_when=asyncio.FIRST_COMPLETED)
        return wanted.done()
    finally:
        for task in (wanted, timer):
            task.cancel()
        await asyncio.gather(wanted, timer, return_exceptions=True)


async def result_within(awaitable: Awaitable[T], seconds: float) -> T:
    """What it comes to within real seconds; it has ended when this returns.

    Used in place of asyncio.wait_for, which before Python 3.12 loses a cancellation that comes
    together with the result: the caller would go on for nobody.
    Raises: asyncio.TimeoutError, and what it raises.
    """
    work = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({work}, timeout=seconds)
    finally:
        if not work.done():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        elif not work.cancelled():
            work.exception()  # counts as seen where a cancelled caller does not look
    if work.cancelled():
        raise asyncio.TimeoutError
    return work.result()


async def to_the_end(awaitable: Awaitable[T]) -> T:
    """What it comes to. A caller that is cancelled, even twice, waits until it has ended.

    A second time comes by itself: where several run together, the first to end of a cancellation
    has the others cancelled again.
    """
    work = asyncio.ensure_future(awaitable)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({work})
        if not work.cancelled():
            work.exception()
        raise


async def end_child(process: Process, within_s: float = 0.0) -> None:
    """Give a child process so long to end by itself, then kill it; it is gone on return."""
    await to_the_end(_end(process, within_s))


async def _end(process: Process, within_s: float) -> None:
    try:
        if process.returncode is None and within_s:
            await wait_within(process.wait(), within_s, SYSTEM)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
