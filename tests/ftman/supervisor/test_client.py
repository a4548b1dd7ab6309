"""The client against engines that lie: each lie is one typed error, and the engine is replaced."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ftengine.protocol import LINE_LIMIT_BYTES, PROTOCOL_VERSION
from ftman.errors import BusyError, EngineDiedError, FtmanError, UsageError
from ftman.supervisor.client import (
    FinishEvent,
    GenerateRequest,
    ProgressEvent,
    TokenEvent,
    check_protocol,
    parse_hello,
)
from tests.fakes.engine import FakeScript
from tests.ftman.supervisor.harness import QUICK, alive, ask, make_spec, supervised, until

A = make_spec()
MAJOR, MINOR = PROTOCOL_VERSION
ROOT = Path(__file__).parents[3]
GOOD = FakeScript()
LYING = replace(QUICK, cause_s=0.1)
"""None of these engines dies by itself, so its death need not be waited for."""


@pytest.mark.parametrize(
    "lie",
    [
        "half_line",
        "huge_line",
        "garbage",
        "bad_utf8",
        "no_finish",
        "unknown_event",
        "wrong_type",
        "http_garbage",
    ],
)
def test_lie_in_a_stream_is_a_protocol_error_and_replaces_the_engine(
    tmp_path: Path, lie: str
) -> None:
    async def main() -> None:
        scripts = [FakeScript(lie=lie), GOOD]
        async with supervised(tmp_path, scripts, timings=LYING) as (supervisor, launcher):
            async with supervisor.lease(A, keep_alive_s=None) as lease:
                pid = supervisor.running()[0].pid
                with pytest.raises(EngineDiedError) as caught:
                    await ask(lease)
                assert caught.value.code == "engine_protocol"
            await until(lambda: not alive(pid))
            async with supervisor.lease(A, keep_alive_s=None) as lease:
                assert await ask(lease) == [1, 2, 3, 1]
            assert len(launcher.launched) == 2

    asyncio.run(main())


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ("hello_garbage", "not a greeting"),
        ("hello_half", "not a greeting"),
        ("hello_version", "speaks protocol 99"),
        ("info_version", "speaks protocol 99"),
        ("health_garbage", "/health"),
    ],
)
def test_lie_while_starting_is_a_protocol_error(tmp_path: Path, lie: str, words: str) -> None:
    async def main() -> None:
        async with supervised(tmp_path, FakeScript(lie=lie), timings=LYING) as (supervisor, _):
            with pytest.raises(EngineDiedError) as caught:
                async with supervisor.lease(A, keep_alive_s=None):
                    pass
            assert caught.value.code == "engine_protocol"
            assert words in caught.value.message

    asyncio.run(main())


def test_refusal_and_bad_request_are_typed_and_leave_the_engine_alone(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(refuse="no free sequence")
        async with (
            supervised(tmp_path, script) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            with pytest.raises(BusyError, match="no free sequence"):
                await ask(lease)
            assert (await lease.client.health()).state == "ready"

    asyncio.run(main())


def test_prompt_longer_than_the_context_is_a_usage_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            supervised(tmp_path, GOOD) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            with pytest.raises(UsageError, match="5000 tokens") as caught:
                await ask(lease, (1,) * 5000)
            assert (caught.value.code, caught.value.status) == ("prompt_too_long", 400)

    asyncio.run(main())


def test_error_reported_in_a_stream_is_raised_after_the_tokens_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(stream_error="page pool is corrupt", hang_after=2)
        async with (
            supervised(tmp_path, script) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            seen = 0

            async def listen() -> None:
                nonlocal seen
                async for event in lease.client.generate(GenerateRequest("r", (1, 2, 3))):
                    seen += isinstance(event, TokenEvent)

            with pytest.raises(FtmanError, match="page pool is corrupt"):
                await listen()
            assert seen == 2

    asyncio.run(main())


def test_events_come_in_order_with_logprobs_when_asked(tmp_path: Path) -> None:
    async def main() -> None:
        script = FakeScript(tokens=(7, 8), prompt_events=2)
        async with (
            supervised(tmp_path, script) as (supervisor, _),
            supervisor.lease(A, keep_alive_s=None) as lease,
        ):
            request = GenerateRequest("r", (1, 2, 3, 4), logprobs=1)
            events = [event async for event in lease.client.generate(request)]
        assert [type(event) for event in events] == [
            ProgressEvent,
            ProgressEvent,
            TokenEvent,
            TokenEvent,
            FinishEvent,
        ]
        assert isinstance(events[2], TokenEvent)
        assert events[2].logprobs[0].token_id == 7
        assert isinstance(events[4], FinishEvent)
        assert (events[4].reason, events[4].prompt_tokens) == ("stop", 4)

    asyncio.run(main())


def test_hello_of_another_major_version_names_both() -> None:
    line = b'{"address":"unix:/x","protocol":[2,0],"pid":1}\n'
    with pytest.raises(EngineDiedError, match=r"protocol 2\.0.*1\.x"):
        parse_hello(line, "m")


def test_line_limit_is_what_the_fake_goes_past() -> None:
    assert LINE_LIMIT_BYTES < 1_000_000_000


@pytest.mark.parametrize("version", [(MAJOR, MINOR), (MAJOR, MINOR + 1)])
def test_engine_of_this_or_a_later_minor_version_is_fine(version: tuple[int, int]) -> None:
    check_protocol(version, "tiny")


@pytest.mark.parametrize("version", [(MAJOR - 1, 99), (MAJOR, MINOR - 1), (MAJOR + 1, MINOR)])
def test_engine_that_would_ignore_fields_is_refused(version: tuple[int, int]) -> None:
    with pytest.raises(EngineDiedError, match=rf"speaks protocol {version[0]}\.{version[1]}"):
        check_protocol(version, "tiny")


def test_what_a_first_question_needs_is_imported_beforehand() -> None:
    program = """
import asyncio, sys
from ftman.errors import EngineDiedError
from ftman.supervisor.client import EngineClient, warm_up

async def main():
    await warm_up()
    before = set(sys.modules)
    client = EngineClient("unix:/dev/null", "t", name="a", cause=None, condemn=None)
    try:
        await client.health()
    except EngineDiedError:
        print(sorted(set(sys.modules) - before))

asyncio.run(main())
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout == "[]\n"
