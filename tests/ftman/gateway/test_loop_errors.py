"""What no task owns: a late wake-up is nothing, everything else is logged."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest

from ftman.gateway.serve_process import on_loop_error


def late_wake_up(loop: asyncio.AbstractEventLoop) -> None:
    future = loop.create_future()
    future.cancel()
    loop.call_soon(future.set_result, None)


def broken(loop: asyncio.AbstractEventLoop) -> None:
    def fail() -> None:
        raise asyncio.InvalidStateError("something else")

    loop.call_soon(fail)


def no_file_left(loop: asyncio.AbstractEventLoop) -> None:
    error = OSError(errno.EMFILE, "Too many open files")
    message = "socket.accept() out of system resource"
    loop.call_exception_handler({"message": message, "exception": error})


@pytest.mark.parametrize(
    ("cause", "num_errors"), [(late_wake_up, 0), (no_file_left, 0), (broken, 1)]
)
def test_only_what_is_known_and_passes_is_no_error(
    cause: object, num_errors: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(on_loop_error)
        assert callable(cause)
        cause(loop)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR, "asyncio"):
        asyncio.run(run())
    assert len(caplog.records) == num_errors
