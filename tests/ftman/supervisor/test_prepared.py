"""The prepared engine: used once, replaced, harmless in its death, gone with memory and manager."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ftman.clock import SYSTEM
from ftman.config import EngineSettings, load_config
from ftman.errors import CannotFitError, EngineDiedError, FtmanError, UsageError
from ftman.supervisor import prepared
from ftman.supervisor.child import Child
from ftman.supervisor.launcher import EngineLauncher
from ftman.supervisor.rundir import EngineRecord
from ftman.supervisor.supervisor import Memory, Supervisor
from tests.fakes.engine import FakeLauncher
from tests.fakes.script import FakeScript
from tests.ftman.supervisor.harness import (
    GIB,
    QUICK,
    alive,
    ask,
    left_overs,
    make_config,
    make_spec,
    until,
)

A, B = make_spec("aaaa"), make_spec("bbbb")
GOOD = FakeScript(tokens=(7, 8))
TIMINGS = replace(QUICK, quiet_s=0.02)


@dataclass
class Rig:
    """A supervisor that prepares engines, and the memory it is told of."""

    supervisor: Supervisor
    launcher: FakeLauncher
    free_bytes: int = 8 * GIB

    @property
    def pid(self) -> int:
        return self.supervisor.prepared_pid

    async def prepared(self, but: int = 0) -> int:
        """The pid of one that is not `but`, once there is one."""
        await until(lambda: self.pid not in (0, but))
        return self.pid

    async def answer(self) -> int:
        """Have A answer; returns the pid of its engine."""
        async with self.supervisor.lease(A, keep_alive_s=None) as lease:
            assert await ask(lease) == [7, 8]
            return self.supervisor.running()[0].pid


@asynccontextmanager
async def rigged(
    home: Path, *, adopt: bool = False, free_bytes: int = 8 * GIB
) -> AsyncIterator[Rig]:
    launcher = FakeLauncher(GOOD, waits=True)
    rig: Rig
    supervisor = Supervisor(
        make_config(home, adopt=adopt),
        SYSTEM,
        launcher,
        timings=TIMINGS,
        memory=lambda: Memory(16 * GIB, rig.free_bytes),
    )
    rig = Rig(supervisor, launcher, free_bytes)
    await supervisor.start()
    try:
        yield rig
    finally:
        await supervisor.close()


@pytest.mark.parametrize("adopt", [False, True])
def test_it_becomes_the_next_engine_and_another_takes_its_place(
    tmp_path: Path, adopt: bool
) -> None:
    async def main() -> None:
        async with rigged(tmp_path, adopt=adopt) as rig:
            first = await rig.prepared()
            assert rig.supervisor.running() == [], "it is no loaded model"
            assert left_overs(tmp_path) == [], "it has nothing on disk"
            assert await rig.answer() == first
            (record,) = (tmp_path / "run" / "engines").iterdir()
            assert json.loads(record.read_bytes())["pid"] == first
            second = await rig.prepared(but=first)
            await rig.supervisor.unload(A.key)
            assert not alive(first)
            assert await rig.answer() == second
        assert not alive(second)
        assert left_overs(tmp_path) == []

    asyncio.run(main())


def test_what_it_says_as_an_engine_goes_to_the_log_of_its_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with rigged(tmp_path) as rig:
            await rig.prepared()
            rig.launcher.script = FakeScript(die_at="load", last_words="no such tensor")
            with pytest.raises(EngineDiedError, match="no such tensor"):
                await rig.answer()

    asyncio.run(main())


def test_one_that_died_costs_nothing_but_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with rigged(tmp_path) as rig:
            dead = await rig.prepared()
            os.kill(dead, signal.SIGKILL)
            # At once, before anybody was told of it: the engine is started from nothing then.
            assert await rig.answer() != dead
        assert left_overs(tmp_path) == []

    asyncio.run(main())


def test_after_three_deaths_none_is_kept(tmp_path: Path) -> None:
    """Each is noticed when it happens, and replaced until then."""

    async def main() -> None:
        async with rigged(tmp_path) as rig:
            last = 0
            for _ in range(prepared.MOST_DEATHS):
                last = await rig.prepared(but=last)
                os.kill(last, signal.SIGKILL)
            await until(lambda: rig.supervisor._prepared._task.done())  # type: ignore[union-attr]
            assert rig.pid == 0
            await rig.answer()

    asyncio.run(main())


def test_none_is_kept_where_memory_is_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "LOOK_S", 0.02)

    async def main() -> None:
        async with rigged(tmp_path, free_bytes=prepared.AMPLE_BYTES - 1) as rig:
            for _ in range(5):
                await asyncio.sleep(0.02)
            assert rig.pid == 0
            rig.free_bytes = prepared.AMPLE_BYTES
            pid = await rig.prepared()
            rig.free_bytes = prepared.SHORT_BYTES - 1
            await until(lambda: rig.pid == 0)
            await until(lambda: not alive(pid))

    asyncio.run(main())


def test_what_it_holds_is_there_for_a_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with rigged(tmp_path) as rig:
            pid = await rig.prepared()
            await until(lambda: rig.supervisor._prepared.held_bytes > 1 << 20)
            held = rig.supervisor._prepared.held_bytes
            rig.free_bytes = A.need_bytes - held // 2
            assert await rig.answer() == pid
        async with rigged(tmp_path, free_bytes=A.need_bytes - held // 2) as rig:
            with pytest.raises(CannotFitError):
                await rig.answer()

    asyncio.run(main())


def test_it_ends_when_its_manager_is_killed(tmp_path: Path) -> None:
    """Also where engines are left to the next manager: nobody would ever find this one."""

    async def main() -> None:
        async with rigged(tmp_path, adopt=True) as rig:
            pid = await rig.prepared()
            child = rig.supervisor._prepared._child
            assert child is not None
            assert child._popen is not None
            assert child._popen.stdin is not None
            child._popen.stdin.close()  # as the system does when a process ends
            await until(lambda: not alive(pid))

    asyncio.run(main())


def test_a_busy_manager_prepares_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with rigged(tmp_path) as rig:
            first = await rig.prepared()
            async with rig.supervisor.lease(A, keep_alive_s=None) as lease:
                await ask(lease)
                for _ in range(5):
                    await asyncio.sleep(0.02)
                assert rig.pid == 0
            await rig.prepared(but=first)

    asyncio.run(main())


def test_the_setting(tmp_path: Path) -> None:
    waiting: Callable[[str], list[str]] = lambda text: EngineLauncher(  # noqa: E731
        EngineSettings(prepare_engine=text)
    ).waiting()
    assert waiting("off") == []
    assert waiting("auto")[-2:] == ["ftengine", "wait"]
    environ = {"FT_HOME": str(tmp_path), "FT_PREPARE_ENGINE": "off"}
    assert load_config(environ).engine.prepare_engine == "off"
    with pytest.raises(UsageError, match="one of auto, off"):
        load_config({**environ, "FT_PREPARE_ENGINE": "always"})


def test_one_whose_files_have_changed_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its later imports would be another version's; what is started now is of one version."""
    version = ["1"]

    def engine_files() -> str:
        assert threading.current_thread() is not threading.main_thread(), "the event loop waits"
        return version[0]

    monkeypatch.setattr(prepared, "engine_files", engine_files)

    async def main() -> None:
        async with rigged(tmp_path) as rig:
            old = await rig.prepared()
            version[0] = "2"
            assert await rig.answer() != old
            await until(lambda: not alive(old))
            await rig.supervisor.unload(A.key)
            new = await rig.prepared(but=old)
            assert await rig.answer() == new

    asyncio.run(main())


def test_without_a_thread_to_look_at_the_files_it_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> None:
        async with rigged(tmp_path) as rig:
            pid = await rig.prepared()
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "to_thread", no_thread)
                assert await rig.answer() == pid

    asyncio.run(main())


def test_of_two_engines_that_start_at_once_one_gets_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with rigged(tmp_path) as rig:
            pid = await rig.prepared()
            keeper = rig.supervisor._prepared  # two loads never begin in one turn of the loop
            found = [child for child in await asyncio.gather(keeper.take(), keeper.take()) if child]
            assert [child.pid for child in found] == [pid]
            await keeper.end(found[0])

    asyncio.run(main())


def test_one_that_is_taken_by_nobody_any_more_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = asyncio.Event()

    async def look_forever(*_: object) -> None:
        looking.set()
        await asyncio.Event().wait()

    async def main() -> None:
        async with rigged(tmp_path) as rig:
            pid = await rig.prepared()
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "to_thread", look_forever)
                taking = asyncio.ensure_future(rig.supervisor._prepared.take())
                await looking.wait()
                taking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await taking
            assert not alive(pid)

    asyncio.run(main())


def test_one_that_is_ended_is_gone_though_its_keeper_is_cancelled_meanwhile(tmp_path: Path) -> None:
    async def main() -> None:
        async with rigged(tmp_path) as rig:
            await rig.prepared()
            child = await rig.supervisor._prepared.take()
            assert child is not None
            ending = asyncio.ensure_future(rig.supervisor._prepared.end(child))
            await asyncio.sleep(0)
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            assert child.exit_code == -signal.SIGKILL
            with pytest.raises(ValueError, match="closed file"):
                assert child.stdout_fd

    asyncio.run(main())


def test_an_upgrade_is_seen_by_the_files() -> None:
    found = prepared.engine_files()
    assert found == prepared.engine_files()
    assert isinstance(found, list)
    assert len(found) > 100


def test_a_disk_that_is_full_at_the_handing_over_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with rigged(tmp_path) as rig:
            pid = await rig.prepared()
            with monkeypatch.context() as patch:
                patch.setattr(EngineRecord, "write", full)
                with pytest.raises(
                    FtmanError, match="could not be started: the disk refused: No space left"
                ):
                    await rig.answer()
            await until(lambda: not alive(pid))
            assert await rig.answer() != pid
        assert left_overs(tmp_path) == []

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    asyncio.run(main())


@pytest.mark.parametrize("where", ["files", "start"])
def test_what_the_system_refuses_for_a_while_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(prepared, "LOOK_S", 0.02)
    refused = []
    spawn = Child.spawn

    def used_up(*given: Any, **named: Any) -> Any:
        if len(refused) < 2 * prepared.MOST_DEATHS:
            refused.append(where)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return spawn(*given, **named) if where == "start" else Memory(16 * GIB, 8 * GIB)

    async def main() -> None:
        async with rigged(tmp_path) as rig:
            if where == "start":
                monkeypatch.setattr(Child, "spawn", used_up)
            else:
                around = replace(rig.supervisor._prepared._around, memory=used_up)
                monkeypatch.setattr(rig.supervisor._prepared, "_around", around)
            await rig.prepared()
        assert len(refused) == 2 * prepared.MOST_DEATHS

    asyncio.run(main())
