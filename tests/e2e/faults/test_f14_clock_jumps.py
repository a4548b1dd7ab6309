"""F14: the wall clock jumps, the machine sleeps; what waits goes by the monotonic clock."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable

import httpx
import pytest

from ftman.errors import BusyError, FtmanError
from ftman.supervisor.supervisor import Supervisor
from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.manager_process import Rig, runs
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeScript
from tests.ftman.pull.test_download import failure, file_of
from tests.ftman.supervisor.harness import ask, make_spec, supervised, until

A, B = make_spec("aaaa"), make_spec("bbbb")
HOUR, YEAR = 3600.0, 365 * 86400.0
KEEP_S = 300.0


def jump_of(clock: FakeClock, rng: random.Random) -> Callable[[], None]:
    """One way in which time goes wrong; none of it is seen by the monotonic clock."""
    seconds = rng.choice([HOUR, -HOUR, YEAR, -YEAR, -clock.wall(), 8 * HOUR, rng.uniform(-9, 9)])
    return lambda: clock.jump_wall(seconds)


@runs
def test_nothing_is_unloaded_before_its_time_or_after(rig: Rig, num_points: int) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with supervised(rig.home, FakeScript(), clock=clock) as (supervisor, launcher):
            for _ in range(num_points):
                await one_keep_alive(supervisor, clock, rig.rng)
            assert len(launcher.launched) <= num_points
            await clock.drive(supervisor.close())

    asyncio.run(main())
    invariants.nothing_is_left(rig.home, [])


async def one_keep_alive(supervisor: Supervisor, clock: FakeClock, rng: random.Random) -> None:
    """Load, jump about while it is idle, and see it go when its time has come."""

    async def use() -> list[int]:
        async with supervisor.lease(A, keep_alive_s=None) as lease:
            return await ask(lease)

    assert await clock.drive(use()) == [1, 2, 3, 1]
    begun_s, left_s = clock.monotonic(), KEEP_S
    while left_s > 20:
        jump_of(clock, rng)()
        step_s = rng.uniform(1, left_s - 10)
        clock.advance(step_s)
        await asyncio.sleep(0.002)
        left_s = KEEP_S - (clock.monotonic() - begun_s)
        (running,) = supervisor.running()
        assert running.expires_wall_s is not None
        told_s = running.expires_wall_s - clock.wall()
        assert abs(told_s - left_s) < 5, (told_s, left_s)
    clock.advance(left_s)
    await clock.drive(until(lambda: not supervisor.running()))
    # An engine needs a moment of its own to end, in which this clock goes on.
    assert clock.monotonic() - begun_s <= 2 * KEEP_S


def test_the_breaker_opens_again_by_the_monotonic_clock(rig: Rig) -> None:
    async def main() -> None:
        clock = FakeClock()
        script = FakeScript(load_error="no router")
        async with supervised(rig.home, script, clock=clock) as (supervisor, launcher):

            async def fail() -> FtmanError:
                try:
                    async with supervisor.lease(A, keep_alive_s=None):
                        raise AssertionError("it loaded")
                except FtmanError as error:
                    return error

            for _ in range(3):
                assert (await clock.drive(fail())).code == "load_failed"
            error = await clock.drive(fail())
            assert isinstance(error, BusyError)
            for jump_s in (YEAR, -2 * YEAR, -clock.wall()):
                clock.jump_wall(jump_s)
                error = await clock.drive(fail())
                assert isinstance(error, BusyError)
                assert 0 < error.retry_after_s <= 10, "no negative wait, none of a year"
            assert len(launcher.launched) == 3
            clock.advance(11)
            assert (await clock.drive(fail())).code == "load_failed"
            ledger.level("R8", "tries while it is open", len(launcher.launched) - 4, 0)
            await clock.drive(supervisor.close())

    asyncio.run(main())


@runs
def test_a_request_that_waits_is_served_whatever_the_clock_says(rig: Rig, num_points: int) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with supervised(rig.home, FakeScript(), clock=clock, max_loaded_models=1) as (
            supervisor,
            _,
        ):

            async def second() -> list[int]:
                async with supervisor.lease(B, keep_alive_s=None) as lease:
                    return await ask(lease)

            async def both() -> list[int]:
                async with supervisor.lease(A, keep_alive_s=None):
                    waiting = asyncio.create_task(second())
                    await until(lambda: bool(supervisor.queue()))
                    for _ in range(num_points):
                        jump_of(clock, rig.rng)()
                        (queued,) = supervisor.queue()
                        assert queued.wait_s >= 0
                return await waiting

            assert await clock.drive(both()) == [1, 2, 3, 1]
            await clock.drive(supervisor.close())

    asyncio.run(main())


@pytest.mark.parametrize(("code", "text"), [(9, "not yet valid"), (10, "has expired")])
def test_a_certificate_out_of_its_time_makes_one_look_at_the_clock(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, code: int, text: str
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        cause = ssl.SSLCertVerificationError(1, f"certificate {text}")
        cause.verify_code, cause.verify_message = code, f"certificate {text}"
        raise httpx.ConnectError(str(cause)) from cause

    monkeypatch.setattr(httpx.AsyncClient, "send", refuse)
    error = failure(file_of("https://models.example/f"), rig.root / "f")
    assert error is not None
    assert text in error.message
    assert "is this machine's clock right?" in error.message
