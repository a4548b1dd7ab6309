"""One process that has loaded everything but a model, kept while nothing else is to be done.

It belongs to no model: no record, no run folder, no place among the loaded ones. What it becomes
is an engine like any other, and process.py's. It ends when its stdin closes: with the manager.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ftengine import protocol
from ftman.clock import Clock
from ftman.config import Paths, engine_environment
from ftman.supervisor import hardware
from ftman.supervisor.child import Child
from ftman.supervisor.client import warm_up
from ftman.supervisor.policy_events import Memory
from ftman.supervisor.rundir import EngineLog
from ftman.supervisor.watch import Timings
from ftman.waits import to_the_end, wait_within

log = logging.getLogger(__name__)

LOG_NAME = "prepared"
LOOK_S = 30.0
AMPLE_BYTES = 2 << 30
"""Available when one is started: ten times what it takes."""
SHORT_BYTES = 1 << 30
"""Available when one is ended again."""
MOST_DEATHS = 3
"""In a row and unused; then something is wrong with it, and every engine starts from nothing."""


@dataclass(frozen=True)
class Surroundings:
    """What a prepared process depends on. quiet: no request runs or waits, no engine starts."""

    paths: Paths
    clock: Clock
    timings: Timings
    memory: Callable[[], Memory]
    quiet: Callable[[], bool]
    dies_with_us: bool


class Prepared:
    """Keeps the process. argv [] = none is kept. Use from one event loop."""

    def __init__(self, argv: list[str], around: Surroundings):
        self._argv = argv
        self._around = around
        self._child: Child | None = None
        self._deaths = 0
        self._files: object = None
        self._moved = asyncio.Event()
        self._taken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the process that waits; 0 = none does."""
        child = self._child
        return 0 if child is None or child.exited.is_set() else child.pid

    @property
    def held_bytes(self) -> int:
        """Memory that is free again, or an engine's own, when an engine is started."""
        return hardware.private_bytes(self.pid) if self.pid else 0

    def start(self) -> None:
        """Have one as soon as the time has come."""
        if self._argv:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    def moved(self) -> None:
        """Something happened: the quiet begins anew."""
        self._moved.set()

    async def take(self) -> Child | None:
        """The process, to become an engine; None when there is none.

        One whose files have changed since it was started is none: what it imports later would not
        fit what it has imported.
        """
        child = self._child
        if (
            child is None
            or child.exited.is_set()
            or (os.name == "posix" and not child.identity.start)
        ):
            return None
        files, self._child, self._deaths = self._files, None, 0
        self._taken.set()
        try:
            same = await _files_now() == files
        except BaseException:  # nobody waits for it any more
            await self.end(child)
            raise
        if same:
            return child
        log.info("the engine's files have changed: the prepared engine ends unused")
        await self.end(child)
        return None

    def order(self, command: list[str], log_path: Path) -> bytes:
        """What it is told, to do as `command` says from its verb on."""
        order = {"arguments": command[len(self._argv) - 1 :], "log": str(log_path)}
        return json.dumps(order).encode() + b"\n"

    async def close(self) -> None:
        """End it; nothing is left when this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end()

    async def _keep(self) -> None:
        while self._deaths < MOST_DEATHS:
            self._taken.clear()
            if self._child is None:
                await self._until_quiet()
                await warm_up()
            else:
                await self._until_news(self._child)
            await self._look()
        log.warning("the prepared engine died %s times; none is kept any more", self._deaths)

    async def _until_quiet(self) -> None:
        """Return when nothing has happened for a while and nothing is under way."""
        around = self._around
        while True:
            self._moved.clear()
            pause_s = around.timings.quiet_s if around.quiet() else LOOK_S
            if not await wait_within(self._moved.wait(), pause_s, around.clock) and around.quiet():
                return

    async def _until_news(self, child: Child) -> None:
        """Return when it is taken or dead, or when it is time to look at memory."""
        news = [asyncio.ensure_future(event.wait()) for event in (self._taken, child.exited)]
        first = asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
        try:
            await wait_within(first, LOOK_S, self._around.clock)
        finally:
            for task in news:
                task.cancel()

    async def _look(self) -> None:
        around = self._around
        if self._child is None and self._taken.is_set():
            return
        try:
            available = around.memory().available_bytes
        except OSError as error:  # no files left, say; that is nothing of ours
            log.debug("memory is not told: %s", error)
            await around.clock.sleep(LOOK_S)
            return
        if self._child is None:
            if available < AMPLE_BYTES or not await self._spawn():
                await around.clock.sleep(LOOK_S)
        elif self._child.exited.is_set():
            log.warning("the prepared engine %s", self._child.describe_exit())
            self._deaths += 1
            await self._end()
        elif available < SHORT_BYTES:
            log.info("memory is short: the prepared engine ends")
            await self._end()

    async def _spawn(self) -> bool:
        def spawn(stderr_fd: int) -> None:
            dies = self._around.dies_with_us
            environ = engine_environment()
            self._child = Child.spawn(self._argv, environ, stderr_fd, dies_with_us=dies, waits=True)
            log.info("process %s is prepared for the next model", self._child.pid)

        self._files = await _files_now()
        try:
            EngineLog(self._around.paths, LOG_NAME).open_for(spawn)
        except (OSError, subprocess.SubprocessError, MemoryError) as error:
            # A full disk, no files, no memory: that passes, and is no death.
            log.warning("no engine can be prepared now: %s", error or "no memory")
        return self._child is not None

    async def end(self, child: Child) -> None:
        """End a process that is of no use; also by a caller who is cancelled meanwhile."""
        child.kill()
        await to_the_end(self._closed(child))

    async def _closed(self, child: Child) -> None:
        await wait_within(child.exited.wait(), self._around.timings.drain_s, self._around.clock)
        child.close()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await self.end(child)


async def _files_now() -> object:
    try:
        return await asyncio.to_thread(engine_files)
    except RuntimeError:  # no thread is to be had; here it holds others up for two milliseconds
        return engine_files()


def engine_files() -> object:
    """What the engine's program consists of on disk, to be compared; an upgrade changes it."""
    found = []
    try:
        for folder, inner, names in os.walk(Path(protocol.__file__).parent):
            inner[:] = [name for name in inner if name != "__pycache__"]
            for name in names:
                status = os.stat(f"{folder}/{name}")  # noqa: PTH116 - hundreds, before a load
                found.append((folder, name, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError:  # in the middle of an upgrade
        return None
    return found
