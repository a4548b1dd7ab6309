"""Waits lose neither a result nor a cancellation, however close together the two come."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from ftman.waits import end_child, result_within, to_the_end

LONG_S = 60.0
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True);"
    " time.sleep(60)"
)


async def turns(number: int = 3) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_the_result_comes_or_its_error_or_the_limit() -> None:
    ended = []

    async def fails() -> None:
        raise ValueError("its own")

    async def lasts() -> None:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            await turns()
            ended.append(True)

    async def main() -> None:
        assert await result_within(asyncio.sleep(0, "it"), LONG_S) == "it"
        with pytest.raises(ValueError, match="its own"):
            await result_within(fails(), LONG_S)
        with pytest.raises(asyncio.TimeoutError):
            await result_within(lasts(), 0.001)
        assert ended

    asyncio.run(main())


@pytest.mark.parametrize("error", [None, ValueError("unseen")])
def test_a_cancellation_that_comes_with_the_result_is_not_lost(error: Exception | None) -> None:
    unseen: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
        work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        caller = asyncio.ensure_future(result_within(work, LONG_S))
        await turns()
        if error is None:
            work.set_result(1)
        else:
            work.set_exception(error)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(main())
    assert not unseen


def test_what_must_end_is_waited_for_by_a_caller_who_is_cancelled_twice() -> None:
    async def main() -> None:
        work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        caller = asyncio.ensure_future(to_the_end(work))
        for _ in range(2):
            await turns()
            caller.cancel()
        await turns()
        assert not caller.done()
        work.set_result(1)
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(main())


async def child(code: str) -> Process:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    return process


def test_a_child_gets_its_time_and_is_killed_then() -> None:
    async def main() -> None:
        good = await child("print(flush=True)")
        await end_child(good, LONG_S)
        assert good.returncode == 0
        bad = await child(STUBBORN)
        await end_child(bad, 0.001)
        assert bad.returncode == -9

    asyncio.run(main())


def test_a_child_is_gone_though_the_caller_is_cancelled_while_it_ends() -> None:
    async def main() -> None:
        process = await child(STUBBORN)
        caller = asyncio.ensure_future(end_child(process, 0.05))
        for _ in range(2):
            await turns()
            caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(ProcessLookupError):
            os.kill(process.pid, 0)

    asyncio.run(main())
