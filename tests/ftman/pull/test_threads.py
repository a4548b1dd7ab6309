"""Blocking work is never left running behind its caller's back, however often that is cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ftman.pull.threads import in_thread, run_all

LIMIT_S = 30.0


class Work:
    """Something in a thread that ends when it is told to."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.ended = False

    def __call__(self) -> None:
        self.begun.set()
        assert self.go_on.wait(LIMIT_S)
        self.ended = True


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_caller_that_is_cancelled_waits_for_the_thread(times: int) -> None:
    async def main() -> None:
        work = Work()
        task = asyncio.ensure_future(in_thread(work))
        await asyncio.to_thread(work.begun.wait, LIMIT_S)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done(), "it was left running"
        work.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.ended

    asyncio.run(main())


def test_the_first_of_several_to_end_of_a_cancellation_does_not_free_the_others() -> None:
    async def main() -> None:
        works = [Work(), Work()]
        freed: list[bool] = []

        async def one(work: Work) -> None:
            try:
                await in_thread(work)
            finally:
                freed.append(work.ended)

        task = asyncio.ensure_future(run_all(one(work) for work in works))
        for work in works:
            await asyncio.to_thread(work.begun.wait, LIMIT_S)
        task.cancel()
        await asyncio.sleep(0.01)
        works[0].go_on.set()
        while not works[0].ended or not freed:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.02)
        assert freed == [True], "the other one's thread still runs"
        works[1].go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert freed == [True, True]

    asyncio.run(main())
