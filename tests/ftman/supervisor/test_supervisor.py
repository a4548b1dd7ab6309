"""The supervisor over real processes that crash, hang, refuse and ignore signals."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from ftman.errors import BusyError, EngineDiedError, FtmanError
from ftman.supervisor.client import GenerateRequest
from ftman.supervisor.supervisor import Supervisor, Timings, Waiting
from tests.fakes.clock import FakeClock
from tests.fakes.engine import FakeLauncher, FakeScript
from tests.ftman.supervisor.harness import (
    QUICK,
    alive,
    ask,
    ids_of,
    left_overs,
    make_spec,
    supervised,
    timed,
    until,
)

A, B = make_spec("aaaa"), make_spec("bbbb")
GOOD = FakeScript()
SOON_S = 5.0
"""A busy machine takes its time; what this is held against takes a minute, or never comes."""


async def fail_with(supervisor: Supervisor, max_tokens: int = 50) -> tuple[FtmanError, list[int]]:
    """Lease A, generate, and return the error with the ids that came before it."""
    ids: list[int] = []
    try:
        async with supervisor.lease(A, keep_alive_s=None) as lease:
            request = GenerateRequest("r", (1, 2, 3), max_tokens=max_tokens)
            async for event in lease.client.generate(request):
                ids += ids_of(event)
    except FtmanError as error:
        return error, ids
    raise AssertionError("the request ended without an error")


def test_lease_starts_an_engine_reports_the_load_and_streams(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(load_s=0.5, load_steps=10, total_bytes=400)
        async with supervised(tmp_path, script) as (supervisor, launcher):
            told: list[Waiting] = []
            async with supervisor.lease(A, keep_alive_s=None, on_wait=told.append) as lease:
                assert await ask(lease) == [1, 2, 3, 1]
                assert lease.info.ftw_id == "aaaa"
                assert lease.load_s > 0.4
                (running,) = supervisor.running()
                assert (running.state, running.in_use, running.size_bytes) == ("ready", 1, 400)
                assert alive(running.pid)
            assert {waiting.kind for waiting in told} == {"load"}
            assert len({waiting.loaded_bytes for waiting in told}) > 2, "progress was shown"
            async with supervisor.lease(A, keep_alive_s=None):
                pass
            assert len(launcher.launched) == 1
            assert supervisor.uses("aaaa")
            assert not supervisor.uses("bbbb")

    asyncio.run(main())


@pytest.mark.parametrize("after", range(6))
def test_engine_killed_after_token_n_ends_the_stream_with_the_cause(
    tmp_path: Path, after: int
) -> None:
    async def main() -> None:
        scripts = [FakeScript(die_at="token", die_after=after, token_s=0.001), GOOD]
        async with supervised(tmp_path, scripts) as (supervisor, launcher):
            error, ids = await fail_with(supervisor)
            assert isinstance(error, EngineDiedError)
            assert error.code == "engine_died"
            assert "SIGKILL" in error.message
            assert ids == [1, 2, 3, 1, 2][:after]
            async with supervisor.lease(A, keep_alive_s=None) as lease:
                assert await ask(lease) == [1, 2, 3, 1]
            assert len(launcher.launched) == 2

    asyncio.run(main())


def test_engine_killed_from_outside_is_noticed_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(token_s=0.01)
        slow_poll = Timings(poll_s=30.0)
        async with supervised(tmp_path, script, timings=slow_poll) as (supervisor, _):
            async with supervisor.lease(A, keep_alive_s=None):
                pid = supervisor.running()[0].pid
                os.kill(pid, signal.SIGKILL)
                took_s = await timed(until(lambda: not supervisor.running()))
            assert took_s < SOON_S
            assert left_overs(tmp_path) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("at", "die", "words"),
    [
        ("start", "exit:1", "exit code 1"),
        ("load", "kill", "SIGKILL"),
        ("load", "segv", "SIGSEGV"),
        ("prefill", "exit:0", "exit code 0"),
        ("token", "exit:137", "137"),
        ("token", "segv", "SIGSEGV"),
    ],
)
def test_every_death_names_its_cause_and_last_words(
    tmp_path: Path, die: str, words: str, at: str
) -> None:
    async def main() -> None:
        script = FakeScript(die_at=at, die=die, last_words="bank 3 is on fire")
        async with supervised(tmp_path, script) as (supervisor, _):
            error, _ = await fail_with(supervisor)
            assert isinstance(error, EngineDiedError)
            assert words in error.message
            assert "bank 3 is on fire" in error.message
            assert error.code == ("load_failed" if at in ("start", "load") else "engine_died")
            assert "engine-aaaa-tiny.log" in error.hint

    asyncio.run(main())


def test_death_of_an_idle_engine_costs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        scripts = [FakeScript(die_at="idle"), GOOD]
        async with supervised(tmp_path, scripts) as (supervisor, _):
            async with supervisor.lease(A, keep_alive_s=None):
                pass
            await until(lambda: not supervisor.running())
            async with supervisor.lease(A, keep_alive_s=None) as lease:
                assert await ask(lease) == [1, 2, 3, 1]

    asyncio.run(main())


@pytest.mark.parametrize(
    "script",
    [FakeScript(freeze_after=2), FakeScript(hang_after=2)],
    ids=["SIGSTOP", "no more steps"],
)
def test_wedged_engine_is_replaced_and_its_request_gets_a_typed_error(
    tmp_path: Path, script: FakeScript
) -> None:
    async def main() -> None:
        short = replace(QUICK, wedge_s=0.5)
        async with supervised(tmp_path, [script, GOOD], timings=short) as (supervisor, _):
            async with supervisor.lease(A, keep_alive_s=None):
                pid = supervisor.running()[0].pid
            error, ids = await fail_with(supervisor)
            assert error.code == "engine_wedged"
            assert ids == [1, 2]
            assert not alive(pid)
            async with supervisor.lease(A, keep_alive_s=None) as lease:
                assert await ask(lease) == [1, 2, 3, 1]

    asyncio.run(main())


def test_long_idle_engine_is_not_taken_for_wedged(tmp_path: Path) -> None:
    async def main() -> None:
        short = Timings(poll_s=0.02, wedge_s=0.5)
        script = FakeScript(token_s=0.03)
        async with (
            supervised(tmp_path, script, timings=short) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            await ask(lease, max_tokens=1)
            for _ in range(13):
                await asyncio.sleep(0.05)
            assert len(await ask(lease, max_tokens=10)) == 10

    asyncio.run(main())


def test_close_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    async def main() -> None:
        stubborn = FakeScript(ignore_sigterm=True)
        timings = Timings(poll_s=0.05, drain_s=0.3)
        async with supervised(tmp_path, [stubborn, GOOD], timings=timings) as (supervisor, _):
            for spec in (A, B):
                async with supervisor.lease(spec, keep_alive_s=-1):
                    pass
            pids = [engine.pid for engine in supervisor.running()]
            assert len(pids) == 2
        assert not any(map(alive, pids))
        assert left_overs(tmp_path) == []

    asyncio.run(main())


def test_close_lets_a_running_answer_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(token_s=0.01)
        patient = replace(QUICK, drain_s=20.0)
        async with supervised(tmp_path, script, timings=patient) as (supervisor, _):
            async with supervisor.lease(A, keep_alive_s=None) as lease:
                answer = asyncio.create_task(ask(lease, max_tokens=20))
                while "fake_running 1" not in await lease.client.metrics():
                    await asyncio.sleep(0.005)
                closing = asyncio.create_task(supervisor.close())
                assert len(await answer) == 20
                await closing
            with pytest.raises(BusyError, match="shutting down"):
                async with supervisor.lease(A, keep_alive_s=None):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "gone"), [(0.0, True), (0.1, True), (-1.0, False), (None, False)]
)
def test_keep_alive_table(tmp_path: Path, given: float | None, gone: bool) -> None:
    async def main() -> None:
        async with supervised(tmp_path, GOOD) as (supervisor, _):
            async with supervisor.lease(A, keep_alive_s=given):
                (running,) = supervisor.running()
                forever = given is not None and given < 0
                assert (running.expires_wall_s is None) == forever
            if gone:
                await until(lambda: not supervisor.running())
            else:
                for _ in range(4):
                    await asyncio.sleep(0.05)
                assert supervisor.running()

    asyncio.run(main())


def test_default_keep_alive_runs_on_the_monotonic_clock(tmp_path: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        async with supervised(tmp_path, GOOD, clock=clock) as (supervisor, _):

            async def use() -> None:
                async with supervisor.lease(A, keep_alive_s=None):
                    pass

            await clock.drive(use())
            expires_s = supervisor.running()[0].expires_wall_s
            assert expires_s is not None
            assert abs(expires_s - clock.wall() - 300.0) < 10.0
            clock.jump_wall(86_400.0)
            clock.advance(290.0)
            for _ in range(3):
                await asyncio.sleep(0.01)
            assert supervisor.running(), "a jump of the wall clock unloads nothing"
            clock.advance(15.0)
            await clock.drive(until(lambda: not supervisor.running()))
            await clock.drive(supervisor.close())

    asyncio.run(main())


def test_two_specs_on_one_slot_take_turns(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path, GOOD, max_loaded_models=1) as (supervisor, launcher):
            for spec in (A, B, A):
                async with supervisor.lease(spec, keep_alive_s=None) as lease:
                    assert await ask(lease) == [1, 2, 3, 1]
                    assert len(supervisor.running()) == 1
            assert [spec.key for spec in launcher.launched] == ["aaaa", "bbbb", "aaaa"]

    asyncio.run(main())


def test_waiting_request_is_told_its_place_until_the_busy_engine_is_free(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path, GOOD, max_loaded_models=1) as (supervisor, _):
            told: list[Waiting] = []

            async def second() -> list[int]:
                async with supervisor.lease(B, keep_alive_s=None, on_wait=told.append) as lease:
                    return await ask(lease)

            async with supervisor.lease(A, keep_alive_s=None):
                waiting = asyncio.create_task(second())
                await until(lambda: bool(told))
                assert told == [Waiting("queue", 1)]
            assert await waiting == [1, 2, 3, 1]
            assert told[-1].kind == "load"

    asyncio.run(main())


def test_queue_overflow_is_refused_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path, GOOD, max_queue=2) as (supervisor, _):

            async def one() -> str:
                try:
                    async with supervisor.lease(A, keep_alive_s=None) as lease:
                        await ask(lease)
                        return "answered"
                except BusyError as error:
                    return error.code

            results = await asyncio.gather(*(one() for _ in range(5)))
            assert results == ["answered", "answered", "queue_full", "queue_full", "queue_full"]

    asyncio.run(main())


def test_three_failed_starts_open_the_breaker_with_the_first_cause(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(load_error="tensor layers.0.router is missing")
        async with supervised(tmp_path, script) as (supervisor, launcher):
            for _ in range(3):
                error, _ = await fail_with(supervisor)
                assert error.code == "load_failed"
                assert "layers.0.router is missing" in error.message
            error, _ = await fail_with(supervisor)
            assert isinstance(error, BusyError)
            assert "layers.0.router is missing" in error.message
            assert 0 < error.retry_after_s <= 10
            assert len(launcher.launched) == 3

    asyncio.run(main())


def test_load_without_progress_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(load_s=100.0, load_steps=1)
        timings = Timings(poll_s=0.02, load_s=0.3, drain_s=1.0)
        async with supervised(tmp_path, script, timings=timings) as (supervisor, _):
            error, _ = await fail_with(supervisor)
            assert error.code == "load_failed"
            assert "no progress" in error.message

    asyncio.run(main())


def test_slow_load_that_makes_progress_is_not_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(load_s=1.2, load_steps=12)
        timings = Timings(poll_s=0.02, load_s=0.6, drain_s=1.0)
        async with (
            supervised(tmp_path, script, timings=timings) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            assert lease.load_s > 1.0

    asyncio.run(main())


def test_an_engine_that_says_it_has_loaded_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        rarely = replace(QUICK, first_poll_s=3600.0, poll_s=3600.0)
        async with (
            supervised(tmp_path, FakeScript(load_s=0.1), timings=rarely) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            assert await ask(lease) == [1, 2, 3, 1]

    asyncio.run(asyncio.wait_for(main(), 30))


def test_cancelled_request_aborts_the_load_it_caused(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path, FakeScript(load_s=60.0)) as (supervisor, _):

            async def wait() -> None:
                async with supervisor.lease(A, keep_alive_s=None):
                    pass

            task = asyncio.create_task(wait())
            await until(lambda: bool(supervisor.running()) and supervisor.running()[0].pid > 0)
            pid = supervisor.running()[0].pid
            task.cancel()
            assert await timed(until(lambda: not alive(pid))) < SOON_S
            await until(lambda: not supervisor.running())

    asyncio.run(main())


def test_closing_the_iterator_aborts_in_the_engine_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            supervised(tmp_path, FakeScript(token_s=0.01)) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            stream = lease.client.generate(GenerateRequest("r", (1, 2), max_tokens=1000))
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]

            async def aborted() -> None:
                while "fake_aborted_total 1" not in await lease.client.metrics():
                    await asyncio.sleep(0.005)

            await asyncio.wait_for(aborted(), SOON_S)

    asyncio.run(main())


def test_unload_ends_an_idle_engine_and_lets_a_busy_one_finish(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path, GOOD) as (supervisor, _):
            assert await supervisor.unload("aaaa") is False
            async with supervisor.lease(A, keep_alive_s=-1) as lease:
                assert await supervisor.unload("aaaa") is True
                assert await ask(lease) == [1, 2, 3, 1]
            await until(lambda: not supervisor.running())
            async with supervisor.lease(A, keep_alive_s=-1):
                pid = supervisor.running()[0].pid
            assert await supervisor.unload("aaaa") is True
            assert not alive(pid)
            assert supervisor.running() == []

    asyncio.run(main())


def test_many_requests_each_get_their_own_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path, GOOD, max_loaded_models=1) as (supervisor, _):

            async def one(number: int) -> None:
                spec = A if number % 20 else B
                async with supervisor.lease(spec, keep_alive_s=None) as lease:
                    prompt = (number, number + 100)
                    assert await ask(lease, prompt, 3) == [number, number + 100, number]

            await asyncio.gather(*(one(number) for number in range(1, 41)))

    asyncio.run(main())


def test_a_missing_program_is_a_failed_start(tmp_path: Path) -> None:
    class NoProgram(FakeLauncher):
        def command(self, *_: object) -> list[str]:
            return ["/nowhere/engine"]

    async def main() -> None:
        async with supervised(tmp_path, GOOD) as (supervisor, _):
            supervisor._host = supervisor._host.__class__(
                **{**supervisor._host.__dict__, "launcher": NoProgram()}
            )
            error, _ = await fail_with(supervisor)
            assert error.code == "load_failed"
            assert "/nowhere/engine" in error.message
        assert left_overs(tmp_path) == []

    asyncio.run(main())


def test_path_too_long_for_a_socket_still_gets_an_engine(tmp_path: Path) -> None:
    async def main() -> None:
        home = tmp_path / ("long" * 25)
        async with (
            supervised(home, GOOD) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            assert await ask(lease) == [1, 2, 3, 1]

    asyncio.run(main())


def test_eight_leases_at_once_share_one_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with supervised(tmp_path, GOOD) as (supervisor, launcher), AsyncExitStack() as stack:
            leases = [
                await stack.enter_async_context(supervisor.lease(A, keep_alive_s=None))
                for _ in range(8)
            ]
            assert supervisor.running()[0].in_use == len(leases)
            assert len(launcher.launched) == 1

    asyncio.run(main())
