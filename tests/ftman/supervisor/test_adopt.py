"""A manager that comes after another: takes healthy engines over, ends the rest, harms nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ftman.supervisor.adopt import prove
from ftman.supervisor.identity import find_by_argv, identity_of
from ftman.supervisor.rundir import EngineRecord, RunFolder, read_records
from tests.fakes.engine import FakeScript
from tests.ftman.supervisor.harness import (
    alive,
    ask,
    left_overs,
    make_config,
    make_spec,
    supervised,
    until,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

REPOSITORY = Path(__file__).resolve().parents[3]
GOOD = FakeScript()

FIRST_MANAGER = """
import asyncio, sys
from pathlib import Path
from tests.fakes.engine import FakeScript
from tests.ftman.supervisor.harness import make_spec, supervised

async def main():
    home, adopt, script = Path(sys.argv[1]), sys.argv[2] == "adopt", sys.argv[3]
    async with supervised(home, FakeScript.from_json(script), adopt=adopt) as (supervisor, _):
        async with supervisor.lease(make_spec(), keep_alive_s=-1):
            print(supervisor.running()[0].pid, flush=True)
            await asyncio.sleep(60)

asyncio.run(main())
"""


def engine_of_a_killed_manager(home: Path, script: FakeScript, *, adopt: bool = True) -> int:
    """Run a manager in a process of its own, kill -9 it, and return its engine's pid."""
    argv = [sys.executable, "-c", FIRST_MANAGER, str(home), "adopt" if adopt else "no"]
    with subprocess.Popen(
        [*argv, script.to_json()], cwd=REPOSITORY, stdout=subprocess.PIPE
    ) as manager:
        assert manager.stdout is not None
        pid = int(manager.stdout.readline())
        manager.kill()
    return pid


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_healthy_engine_is_taken_over_and_serves(tmp_path: Path) -> None:
    pid = engine_of_a_killed_manager(tmp_path, GOOD)

    async def main() -> None:
        async with supervised(tmp_path, GOOD, adopt=True) as (supervisor, launcher):
            assert [engine.pid for engine in supervisor.running()] == [pid]
            async with supervisor.lease(make_spec(), keep_alive_s=None) as lease:
                assert await ask(lease) == [1, 2, 3, 1]
            assert launcher.launched == []
            os.kill(pid, signal.SIGKILL)
            await until(lambda: not supervisor.running())
            async with supervisor.lease(make_spec(), keep_alive_s=None) as lease:
                assert await ask(lease) == [1, 2, 3, 1]
        assert left_overs(tmp_path) == []

    try:
        assert alive(pid)
        asyncio.run(main())
    finally:
        end(pid)


def test_adopted_engine_is_drained_at_close(tmp_path: Path) -> None:
    pid = engine_of_a_killed_manager(tmp_path, GOOD)

    async def main() -> None:
        async with supervised(tmp_path, GOOD, adopt=True) as (supervisor, _):
            assert supervisor.running()

    try:
        asyncio.run(main())
        assert not alive(pid)
        assert left_overs(tmp_path) == []
    finally:
        end(pid)


@pytest.mark.parametrize("stopped", [False, True], ids=["adoption is off", "it hangs"])
def test_engine_that_is_not_taken_over_is_ended(tmp_path: Path, stopped: bool) -> None:
    pid = engine_of_a_killed_manager(tmp_path, FakeScript(ignore_sigterm=True))
    if stopped:
        os.kill(pid, signal.SIGSTOP)

    async def main() -> None:
        async with supervised(tmp_path, GOOD, adopt=stopped) as (supervisor, _):
            assert supervisor.running() == []
            assert not alive(pid)
            assert left_overs(tmp_path) == []

    try:
        asyncio.run(main())
    finally:
        end(pid)


def test_without_adoption_the_engine_dies_with_its_manager(tmp_path: Path) -> None:
    pid = engine_of_a_killed_manager(tmp_path, FakeScript(ignore_sigterm=True), adopt=False)
    try:
        asyncio.run(until(lambda: not alive(pid)))
    finally:
        end(pid)


def test_reused_pid_is_left_alone_and_the_stale_record_removed(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        own = identity_of(stranger.pid)
        assert own is not None
        run = RunFolder("e-00000000", tmp_path / "run/e-00000000", "unix:/x", tmp_path / "t", "t")
        true_argv = EngineRecord(run, make_spec(), own.argv, stranger.pid, own.start)
        assert prove(true_argv) == own
        assert prove(replace(true_argv, start="another boot:1")) is None
        assert prove(replace(true_argv, argv=("python", "engine"))) is None

        async def main() -> None:
            from_before = replace(true_argv, start="another boot:1")
            from_before.write(make_config(tmp_path).paths)
            async with supervised(tmp_path, GOOD, adopt=True) as (supervisor, _):
                assert supervisor.running() == []
            assert left_overs(tmp_path) == []

        asyncio.run(main())
        assert alive(stranger.pid)
    finally:
        stranger.communicate(b"\n")


def test_start_that_was_never_written_down_is_found_by_its_argv() -> None:
    argv = (sys.executable, "-c", "input()", "a mark of our own")
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    try:
        found = find_by_argv(argv)
        assert found is not None
        assert found.pid == process.pid
    finally:
        process.communicate(b"\n")


def test_left_over_socket_folder_and_torn_record_are_swept(tmp_path: Path) -> None:
    engines = tmp_path / "run" / "engines"
    engines.mkdir(parents=True)
    (engines / "e-11111111.json").write_text('{"run": {')
    stale = tmp_path / "run" / "e-22222222"
    stale.mkdir()
    (stale / "engine.sock").write_text("")
    (tmp_path / "run" / "manager.lock").write_text("keep me")

    async def main() -> None:
        async with supervised(tmp_path, GOOD, adopt=True) as (supervisor, _):
            assert read_records(supervisor._paths) == []
            assert left_overs(tmp_path) == ["manager.lock"]
            async with supervisor.lease(make_spec(), keep_alive_s=None) as lease:
                assert await ask(lease) == [1, 2, 3, 1]

    asyncio.run(main())
