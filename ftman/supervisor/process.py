"""One engine process from start to end: start, load, watch, drain. Sole writer of its state.

Others send it intents (stop, condemn); it sends back Loaded, Failing and Exited. What happens
to requests is the policy's business; what happened to the operating system process is child.py's.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from ftman.clock import Clock
from ftman.config import Paths, engine_environment
from ftman.errors import EngineDiedError, FtmanError, failure_of
from ftman.supervisor import hardware
from ftman.supervisor.child import Child
from ftman.supervisor.client import (
    EngineClient,
    EngineInfo,
    Health,
    check_model,
    check_protocol,
    parse_hello,
)
from ftman.supervisor.device_memory import DeviceMemoryWatch, Probe, free_bytes
from ftman.supervisor.launcher import Launcher
from ftman.supervisor.policy_events import EngineSpec, Exited, Failing, Loaded
from ftman.supervisor.prepared import Prepared
from ftman.supervisor.rundir import (
    EngineLog,
    EngineRecord,
    RunFolder,
    make_run_folder,
    started,
)
from ftman.supervisor.watch import HealthJudge, Timings
from ftman.waits import wait_within

log = logging.getLogger(__name__)

HELLO_LIMIT_BYTES = 64_000


@dataclass(frozen=True)
class EngineHost:
    """What all engine processes of one manager share. probe: says what is free on GPUs."""

    paths: Paths
    clock: Clock
    launcher: Launcher
    timings: Timings
    adopt: bool
    prepared: Prepared
    notify: Callable[[Loaded | Failing | Exited], None]
    progressed: Callable[[], None]
    probe: Probe = free_bytes


class EngineProcess:
    """An engine and its state: "loading", "ready", "stopping", "exited"."""

    def __init__(self, engine_id: int, spec: EngineSpec, host: EngineHost):
        self.engine_id = engine_id
        self.spec = spec
        self.state = "loading"
        self.health = Health("loading", total_bytes=spec.need_bytes)
        self.asked_s = host.clock.monotonic()  # when the last answer about its health came, or not
        self.stuck_s = 0.0
        self.info: EngineInfo | None = None
        self.client: EngineClient | None = None
        self.error: FtmanError | None = None
        self.child: Child | None = None
        self._host = host
        self._device_memory = DeviceMemoryWatch(host.clock, spec.device, host.probe)
        self._record: EngineRecord | None = None
        self._log = EngineLog(host.paths, spec.name)
        self._verdict: asyncio.Future[FtmanError] = asyncio.get_running_loop().create_future()
        self._stop_asked = asyncio.Event()
        self.stop_reason = ""
        self._oom_kills = hardware.oom_kills()
        self._stdout: _LineReader | None = None
        self.begun = asyncio.Event()
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Bring the process up in the background; Loaded or Exited is notified."""
        self._task = asyncio.get_running_loop().create_task(self._live())

    def adopt(self, record: EngineRecord, child: Child, info: EngineInfo) -> None:
        """Take over a process that an earlier manager started and that answers as ready."""
        self._record, self.child, self.info = record, child, info
        self.client = self._connect(record.address, record.run.token)
        self.begun.set()
        self.state, self.health = "ready", Health("ready")
        self.start()

    def stop(self, reason: str) -> None:
        """Drain and end it: SIGTERM, and SIGKILL when the grace is over."""
        self.stop_reason = reason
        self._stop_asked.set()

    def condemn(self, error: FtmanError) -> None:
        """It broke the protocol or hangs: end it at once."""
        if not self._verdict.done():
            self._verdict.set_result(error)
            self._host.notify(Failing(self.engine_id))

    async def cause(self) -> FtmanError | None:
        """Why it is gone, waiting a moment for the news; None while it lives."""
        await self._wait_s(self._ended.wait(), self._host.timings.cause_s)
        if self.error is not None:
            return self.error
        return self._verdict.result() if self._verdict.done() else None

    async def wait_ended(self) -> None:
        """Return when the process and what it left on disk are gone."""
        await self._ended.wait()

    async def _live(self) -> None:
        error: FtmanError
        try:
            error = await self._run()
        except FtmanError as raised:
            error = raised
        except OSError as raised:
            error = self._refused(raised)
        except Exception as raised:  # root of this engine's task
            log.exception("engine %s of %s: internal error", self.engine_id, self.spec.name)
            error = self._start_failed(f"internal error ({raised})")
        self.state = "stopping"
        self.begun.set()
        self._host.notify(Failing(self.engine_id))
        try:
            await self._end()
        except OSError as raised:
            log.warning("engine %s: cleaning up failed: %s", self.engine_id, raised)
        except Exception:  # root of this engine's task; its end must be told whatever happened
            log.exception("engine %s of %s: internal error", self.engine_id, self.spec.name)
        self.state, self.error = "exited", error
        self._ended.set()
        level = logging.INFO if error.code == "engine_stopped" else logging.ERROR
        log.log(level, "engine %s of %s is gone: %s", self.engine_id, self.spec.name, error.message)
        self._host.notify(Exited(self.engine_id, error))

    async def _run(self) -> FtmanError:
        """Live until something ends it; returns what its users are told."""
        if self.child is None:
            await self._device_memory.before_load()
            await self._begin()
            self.begun.set()
        assert self.child is not None
        serve = asyncio.create_task(self._serve())
        waits: list[asyncio.Task[object] | asyncio.Future[FtmanError]] = [
            asyncio.create_task(self.child.exited.wait()),
            asyncio.create_task(self._stop_asked.wait()),
        ]
        try:
            await asyncio.wait([serve, *waits, self._verdict], return_when=asyncio.FIRST_COMPLETED)
            if self._verdict.done():
                return self._verdict.result()
            if self._stop_asked.is_set():
                return await self._drain()
            if self.child.exited.is_set():
                return self._death()
            if serve.done():
                return await self._judged(serve)
            raise AssertionError("woken for nothing")
        finally:
            for task in (serve, *waits):
                task.cancel()
            await asyncio.gather(serve, *waits, return_exceptions=True)

    async def _begin(self) -> None:
        """Have a process: the prepared one becomes this engine, else one is started."""
        run = make_run_folder(self._host.paths)
        argv = self._host.launcher.command(self.spec, run.address, run.token_path)
        if self._host.adopt:
            argv = [*argv, "--adopt"]
        prepared = await self._take_prepared(run, argv)
        if not prepared:
            self._spawn(run, argv)
        assert self.child is not None
        how = " was prepared" if prepared else ""
        log.info(
            "engine %s of %s: process %s%s", self.engine_id, self.spec.name, self.child.pid, how
        )

    async def _take_prepared(self, run: RunFolder, argv: list[str]) -> bool:
        child = await self._host.prepared.take()
        if child is None:
            return False
        found = child.identity
        self._record = EngineRecord(run, self.spec, found.argv, found.pid, found.start)
        try:
            # Before it is told: a manager killed in between still finds it.
            self._record.write(self._host.paths)
            self._log.open_for(lambda _: None)
        except OSError:  # it belongs to nobody yet
            await self._host.prepared.end(child)
            raise
        try:
            child.tell(self._host.prepared.order(argv, self._log.path))
        except OSError:  # it died this moment
            await self._host.prepared.end(child)
            return False
        self.child = child
        return True

    def _spawn(self, run: RunFolder, argv: list[str]) -> None:
        self._record = EngineRecord(run, self.spec, tuple(argv))
        if self._host.adopt:
            # Before the process exists: a manager killed in between still finds it by its argv.
            self._record.write(self._host.paths)

        def spawn(stderr_fd: int) -> None:
            self.child = Child.spawn(
                argv, engine_environment(), stderr_fd, dies_with_us=not self._host.adopt
            )

        self._log.open_for(spawn)
        assert self.child is not None
        identity = self.child.identity
        self._record = started(self._record, identity.pid, identity.start)
        self._record.write(self._host.paths)

    async def _serve(self) -> FtmanError:
        """Hello, load, ready, then poll for ever; returns the reason to replace it."""
        if self.info is None:
            await self._greet()
            error = await self._poll_until(lambda health: health.state == "ready")
            if error is not None:
                return error
            assert self.client is not None
            info = await self.client.info(self._host.timings.probe_s)
            check_model(info, self.spec.key, self.spec.name)
            self.info, self.state = info, "ready"
            self._host.notify(Loaded(self.engine_id, promised_bytes(info)))
            await self._device_memory.loaded()
        error = await self._poll_until(lambda _: False)
        assert error is not None
        return error

    async def _greet(self) -> None:
        assert self._record is not None
        run = self._record.run
        self.client = self._connect(run.address, run.token)  # made while the process starts
        line = await self._read_hello()
        hello = parse_hello(line, self.spec.name)
        check_protocol(hello.protocol, self.spec.name)
        self._record = replace(self._record, address=hello.address)
        self._record.write(self._host.paths)
        if hello.address != run.address:  # a port of its own choice
            await self.client.aclose()
            self.client = self._connect(hello.address, run.token)

    async def _read_hello(self) -> bytes:
        assert self.child is not None
        fd = self.child.stdout_fd
        assert fd is not None
        reader = self._stdout = _LineReader(fd)
        hello_s = self._host.timings.hello_s
        if not await self._wait_s(reader.complete.wait(), hello_s):
            raise self._start_failed(f"it did not greet within {hello_s:g} s")
        if not reader.line.endswith(b"\n"):
            # Closed without a line: it is dying, and the exit tells more than the silence.
            await self._wait_s(self.child.exited.wait(), self._host.timings.cause_s)
            if self.child.exited.is_set():
                raise self._death()
        return reader.line

    async def _poll_until(self, reached: Callable[[Health], bool]) -> FtmanError | None:
        """Poll /health until `reached`; returns the judge's reason to give it up, if any."""
        clock, timings = self._host.clock, self._host.timings
        loaded = self.info is not None
        judge = HealthJudge(self.spec.name, timings, clock.monotonic(), loaded=loaded)
        pause_s = timings.first_poll_s if self.state == "loading" else timings.poll_s
        while True:
            error = await self._poll(judge)
            self.asked_s, self.stuck_s = clock.monotonic(), judge.stuck_s
            if error is not None or reached(self.health):
                return error
            await self._pause(pause_s)
            # About a tenth of what it has taken so far: a load is noticed that soon after its end.
            pause_s = min(pause_s * 1.1, timings.poll_s)

    async def _pause(self, seconds: float) -> None:
        """Wait, no longer than until the engine says that something has changed."""
        if self._stdout is None:  # of an earlier manager
            await self._host.clock.sleep(seconds)
            return
        await self._wait_s(self._stdout.more.wait(), seconds)

    async def _poll(self, judge: HealthJudge) -> FtmanError | None:
        assert self.client is not None
        # An answer is at least as old as its question, even if this manager stood still meanwhile.
        asked_s = self._host.clock.monotonic()
        if self._stdout is not None:
            self._stdout.more.clear()
        try:
            health = await self.client.health(self._host.timings.probe_s)
        except EngineDiedError as error:
            if error.code != "engine_silent":
                return error
            return judge.silent(self._host.clock.monotonic())
        self._oom_kills = hardware.oom_kills()
        if health != self.health:
            self.health = health
            self._host.progressed()
        self._log.rotate()
        return judge.answered(health, asked_s)

    async def _judged(self, serve: asyncio.Task[FtmanError]) -> FtmanError:
        """The reason found by polling, unless the process is dying and knows better."""
        assert self.child is not None
        try:
            error = serve.result()
        except FtmanError as raised:
            error = raised
        if error.code in ("load_failed", "engine_wedged"):
            return error
        await self._wait_s(self.child.exited.wait(), self._host.timings.cause_s)
        return self._death() if self.child.exited.is_set() else error

    async def _drain(self) -> FtmanError:
        assert self.child is not None
        self.state = "stopping"
        self.child.terminate()
        ended = asyncio.create_task(self.child.exited.wait())
        either = asyncio.create_task(_first_of(ended, self._verdict))
        await self._wait_s(either, self._host.timings.drain_s)
        ended.cancel()
        return EngineDiedError(
            f"the engine of {self.spec.name} was stopped ({self.stop_reason})",
            hint="Send the request again.",
            code="engine_stopped",
        )

    async def _end(self) -> None:
        """Make sure that nothing is left: process group, connections, files."""
        if self.child is not None:
            self.child.kill()
            if not await self._wait_s(self.child.exited.wait(), self._host.timings.drain_s):
                log.error("process %s does not die, not even by SIGKILL", self.child.pid)
            if self._stdout is not None:
                self._stdout.close()
            self.child.close()
        if self.client is not None:
            await self.client.aclose()
        if self._record is not None:
            self._record.remove(self._host.paths)
        if missing := await self._device_memory.returned(self.spec.name):
            log.warning("%s", missing)

    def _death(self) -> EngineDiedError:
        assert self.child is not None
        how, tail = self.child.describe_exit(self._out_of_memory()), self._log.tail()
        last = f"; its last words: {tail}" if tail else ""
        if self.state == "loading":
            message = f"{self.spec.name} could not be loaded: its engine process {how}{last}"
            return EngineDiedError(message, hint=self._see_log(), code="load_failed")
        message = f"the engine of {self.spec.name} {how}{last}"
        return EngineDiedError(message, hint=f"Send the request again. {self._see_log()}")

    def _out_of_memory(self) -> bool | None:
        """Whether the system ended a process for want of memory since this one was last heard."""
        now = hardware.oom_kills()
        return None if now is None or self._oom_kills is None else now > self._oom_kills

    def _start_failed(self, reason: str) -> EngineDiedError:
        return EngineDiedError(
            f"the engine of {self.spec.name} could not be started: {reason}",
            hint=self._see_log(),
            code="load_failed",
        )

    def _refused(self, error: OSError) -> FtmanError:
        """A full disk or no more files is said as such, with what to do about it."""
        told = failure_of(error)
        if told is None:
            return self._start_failed(str(error))
        text = f"the engine of {self.spec.name} could not be started: {told.message}"
        return type(told)(text, hint=told.hint, code=told.code, status=told.status)

    def _see_log(self) -> str:
        return f"Its log: {self._log.path}"

    def _connect(self, address: str, token: str) -> EngineClient:
        return EngineClient(
            address, token, name=self.spec.name, cause=self.cause, condemn=self.condemn
        )

    async def _wait_s(self, awaitable: Awaitable[object], seconds: float) -> bool:
        """Wait at most `seconds` of our clock; whether it came in time."""
        return await wait_within(awaitable, seconds, self._host.clock)


def promised_bytes(info: EngineInfo) -> int:
    """Memory that an engine may fill in time: weights, KV cache, parked conversations."""
    parked = 0 if info.cache is None else info.cache.parked_limit_bytes
    return info.weights_bytes + info.kv_bytes + parked


async def _first_of(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


class _LineReader:
    """Reads the first line of a pipe without blocking, and notices that there is more.

    The pipe stays open: closing it would end an engine that prints a second line.
    """

    def __init__(self, fd: int):
        self.line = b""
        self.complete = asyncio.Event()
        self.more = asyncio.Event()
        self._fd = fd
        os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(fd, self._read)

    def close(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._fd)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return
        if not data:
            self.close()
        if self.complete.is_set():
            self.more.set()
            return
        self.line += data
        head, newline, rest = self.line.partition(b"\n")
        if newline:
            self.line = head + newline
            if rest:
                self.more.set()
        if newline or not data or len(self.line) > HELLO_LIMIT_BYTES:
            self.complete.set()
