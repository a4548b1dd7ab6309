"""The run loop: feeds the policy, performs its effects, grants leases on engines.

Decides nothing itself; what is decided stands in policy.py, how a process is kept in process.py.
Everything here runs on one event loop, so the policy needs no lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ftman import caller
from ftman.clock import Clock
from ftman.config import Config
from ftman.errors import FtmanError
from ftman.log import request_id as logged_request_id
from ftman.memory import give_back
from ftman.supervisor import hardware
from ftman.supervisor.adopt import recover
from ftman.supervisor.client import EngineClient, EngineInfo
from ftman.supervisor.counts import EngineCounts
from ftman.supervisor.device_memory import Probe, free_bytes
from ftman.supervisor.launcher import EngineLauncher, Launcher
from ftman.supervisor.policy import Engine, Policy
from ftman.supervisor.policy_events import (
    Adopted,
    Arrived,
    Cancelled,
    Effect,
    EngineSpec,
    Exited,
    Grant,
    Limits,
    Loaded,
    Memory,
    PolicyEvent,
    Released,
    ShutdownAsked,
    StartEngine,
    StopEngine,
    Ticked,
    UnloadAsked,
)
from ftman.supervisor.prepared import Prepared, Surroundings
from ftman.supervisor.process import EngineHost, EngineProcess, promised_bytes
from ftman.supervisor.watch import Timings
from ftman.waits import wait_within

__all__ = [
    "EngineClient",
    "EngineInfo",
    "EngineLife",
    "EngineSpec",
    "Lease",
    "Memory",
    "QueuedRequest",
    "RunningEngine",
    "Supervisor",
    "Timings",
    "Waiting",
]

log = logging.getLogger(__name__)

DEFAULT_MAX_LOADED = 3
QUEUE_TICK_S = 1.0
SIGN_OF_LIFE_S = 5.0
NO_MEMORY = Memory(0, 0)


class Waiting(NamedTuple):
    """Why a request has no engine yet. kind: "queue" or "load".

    Units: position in the queue from 1; bytes of the engine being loaded for this request.
    """

    kind: str
    position: int = 0
    loaded_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True)
class RunningEngine:
    """One engine for lists. expires_wall_s None = never. Units: bytes; wall seconds.

    kv_format: how it keeps keys and values, "" while it is not known.
    """

    spec: EngineSpec
    state: str
    expires_wall_s: float | None
    size_bytes: int
    size_vram_bytes: int
    in_use: int
    loaded_bytes: int
    total_bytes: int
    pid: int
    kv_format: str = ""


@dataclass(frozen=True)
class Lease:
    """The right to use one engine until it is left. load_s: seconds from asking to having."""

    key: str
    client: EngineClient
    info: EngineInfo
    load_s: float


@dataclass(frozen=True)
class QueuedRequest:
    """One request that waits: for an engine, or inside one. Units: position from 1; seconds."""

    request_id: str
    model: str
    position: int
    wait_s: float
    reason: str


@dataclass(frozen=True)
class EngineLife:
    """Signs of life of one engine. Units: seconds ago, None = never; stuck_s: of no progress.

    stalls: half of the time has gone by after which it is replaced.
    """

    name: str
    key: str
    state: str
    running: int
    waiting: int
    last_step_s: float | None
    last_token_s: float | None
    stuck_s: float
    stalls: bool


@dataclass
class _Request:
    granted: asyncio.Future[EngineProcess]
    spec: EngineSpec
    asked_s: float
    label: str
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Starts, shares and ends engines. Use from one event loop, between start() and close().

    launcher, timings, memory and probe are for tests; None = the real ones.
    """

    def __init__(
        self,
        config: Config,
        clock: Clock,
        launcher: Launcher | None = None,
        *,
        timings: Timings | None = None,
        memory: Callable[[], Memory] = hardware.memory,
        probe: Probe = free_bytes,
    ):
        self._clock = clock
        self._memory = memory
        self._timings = timings or Timings(load_s=config.engine.load_timeout_s)
        self._adopt = config.engine.adopt
        self._paths = config.paths
        launcher = launcher or EngineLauncher(config.engine)
        self._prepared = Prepared(
            launcher.waiting(),
            Surroundings(
                paths=config.paths,
                clock=clock,
                timings=self._timings,
                memory=memory,
                quiet=self._is_quiet,
                dies_with_us=not self._adopt,
            ),
        )
        self._host = EngineHost(
            paths=config.paths,
            clock=clock,
            launcher=launcher,
            timings=self._timings,
            adopt=self._adopt,
            prepared=self._prepared,
            notify=self._feed,
            progressed=self._spread_news,
            probe=probe,
        )
        self._policy = Policy(
            Limits(
                max_queue=config.max_queue,
                max_loaded_models=config.max_loaded_models or DEFAULT_MAX_LOADED,
                keep_alive_s=config.keep_alive_s,
            )
        )
        self.counts = EngineCounts()
        self._events: deque[PolicyEvent] = deque()
        self._feeding = False
        self._fed_s = clock.monotonic()
        self._processes: dict[int, EngineProcess] = {}
        self._requests: dict[int, _Request] = {}
        self._next_request_id = 1
        self._changed = asyncio.Event()
        self._turned = asyncio.Event()
        self._ticker: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take over healthy engines of an earlier manager, end the others, start the timers."""
        found = await recover(self._paths, self._clock, self._timings, adopt=self._adopt)
        for engine_id, item in enumerate(found, start=1):
            process = EngineProcess(engine_id, item.record.spec, self._host)
            self._processes[engine_id] = process
            process.adopt(item.record, item.child, item.info)
            log.info("took over engine process %s of %s", item.child.pid, item.record.spec.name)
            self._feed(Adopted(engine_id, item.record.spec, promised_bytes(item.info)))
        self._ticker = asyncio.get_running_loop().create_task(self._tick())
        self._prepared.start()

    async def close(self) -> None:
        """Refuse new requests, drain every engine, and return when none is left."""
        self._feed(ShutdownAsked())
        await self._prepared.close()
        while self._processes:
            await asyncio.gather(*(p.wait_ended() for p in tuple(self._processes.values())))
            await asyncio.sleep(0)
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None

    @asynccontextmanager
    async def lease(
        self,
        spec: EngineSpec,
        *,
        keep_alive_s: float | None,
        on_wait: Callable[[Waiting], None] | None = None,
    ) -> AsyncIterator[Lease]:
        """Hold an engine for `spec`, starting it or waiting for it as needed.

        on_wait is told why it takes time, on every change and at least every 5 s. Leaving the
        context starts the keep-alive time: None = unchanged, 0 = unload when idle, negative =
        never unload; the request granted last decides.
        Raises: BusyError, CannotFitError, EngineDiedError.
        """
        request_id = self._next_request_id
        self._next_request_id += 1
        asked_s = self._clock.monotonic()
        try:
            process = await self._acquire(request_id, spec, keep_alive_s, on_wait)
            assert process.client is not None
            assert process.info is not None
            load_s = self._clock.monotonic() - asked_s
            yield Lease(spec.key, process.client, process.info, load_s)
        finally:
            self._let_go(request_id)

    async def unload(self, key: str) -> bool:
        """End the engine of `key` once it is idle; waits for an idle one. False = not running.

        Requests under way are finished first; then it is ended without further waiting.
        """
        engine = self._engine(key)
        if engine is None:
            return False
        process = self._processes[engine.engine_id]
        self._feed(UnloadAsked(key))
        if engine.state == "stopping":
            await process.wait_ended()
        return True

    def running(self) -> list[RunningEngine]:
        """Engines that have a process, oldest first."""
        return [self._describe(engine) for engine in self._policy.engines()]

    def queue(self) -> list[QueuedRequest]:
        """Every request that waits, those without an engine first, in the order of their turns."""
        inside = self._policy.beyond_parallel()
        place, why = self._policy.position, self._policy.why
        waiting = sorted((place(i), i, why(i)) for i in self._requests if place(i))
        waiting += [(position, number, reason) for number, position, reason in inside]
        now_s, found = self._clock.monotonic(), []
        for position, number, reason in waiting:
            request = self._requests.get(number)
            if request is not None:
                wait_s = now_s - request.asked_s
                name = request.spec.name
                found.append(QueuedRequest(request.label, name, position, wait_s, reason))
        return found

    def client(self, key: str) -> EngineClient | None:
        """A way to talk to the ready engine of `key`; None when there is none."""
        engine = self._engine(key)
        if engine is None or engine.state != "ready":
            return None
        return self._processes[engine.engine_id].client

    @property
    def prepared_pid(self) -> int:
        """The process that waits to become the next engine; 0 = none does."""
        return self._prepared.pid

    def lives(self) -> list[EngineLife]:
        """How every engine that has a process is, by its last word; nothing is asked."""
        return [self._life(self._processes[e.engine_id]) for e in self._policy.engines()]

    async def moves(self, within_s: float) -> bool:
        """Whether the timers that wake the policy turn when they are asked to."""
        self._turned.clear()
        self._changed.set()
        return await wait_within(self._turned.wait(), within_s, self._clock)

    async def begun(self, key: str) -> None:
        """Return once the engine of `key` has its process; at once where none is to be started."""
        engine = self._engine(key)
        if engine is not None:
            await self._processes[engine.engine_id].begun.wait()

    def uses(self, ftw_id: str) -> bool:
        """Whether an engine runs from this FTW folder or a request waits for one."""
        return self._policy.wants(ftw_id)

    async def _acquire(
        self,
        request_id: int,
        spec: EngineSpec,
        keep_alive_s: float | None,
        on_wait: Callable[[Waiting], None] | None,
    ) -> EngineProcess:
        granted: asyncio.Future[EngineProcess] = asyncio.get_running_loop().create_future()
        now_s = self._clock.monotonic()
        request = _Request(granted, spec, now_s, logged_request_id.get())
        self._requests[request_id] = request
        self._feed(Arrived(request_id, spec, keep_alive_s, caller.background.get()))
        while not request.granted.done():
            request.news.clear()
            waiting = self._waiting(request_id, spec)
            if on_wait is not None:
                on_wait(waiting)
            await self._until_news(request, request_id, spec, waiting)
        return request.granted.result()

    async def _until_news(
        self, request: _Request, request_id: int, spec: EngineSpec, told: Waiting
    ) -> None:
        """Return when granted, when the reason for waiting changed, or as a sign of life."""
        quiet_until_s = self._clock.monotonic() + SIGN_OF_LIFE_S
        while not request.granted.done():
            await request.news.wait()
            request.news.clear()
            changed = self._waiting(request_id, spec) != told
            if changed or self._clock.monotonic() >= quiet_until_s:
                return

    def _let_go(self, request_id: int) -> None:
        request = self._requests.pop(request_id)
        done = request.granted.done()
        if not done:
            request.granted.cancel()
            self._feed(Cancelled(request_id))
        elif request.granted.exception() is None:
            self._feed(Released(request_id))

    def _waiting(self, request_id: int, spec: EngineSpec) -> Waiting:
        engine_id = self._policy.loading_for(spec)
        if engine_id is None or engine_id not in self._processes:
            return Waiting("queue", self._policy.position(request_id))
        health = self._processes[engine_id].health
        return Waiting("load", 0, health.loaded_bytes, health.total_bytes)

    def _feed(self, event: PolicyEvent) -> None:
        """Give the policy one event. Effects that cause further events are taken in order."""
        self._events.append(event)
        self._fed_s = self._clock.monotonic()
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._feeding = False
        self._changed.set()
        self._prepared.moved()
        self._spread_news()

    def _handle(self, event: PolicyEvent) -> None:
        if isinstance(event, Loaded) and event.engine_id in self._processes:
            name = self._processes[event.engine_id].spec.name
            self.counts.loaded(event.engine_id, name, self._clock.monotonic())
        if isinstance(event, Exited):
            process = self._processes.pop(event.engine_id, None)
            if process is not None:
                self.counts.gone(process, event.error.code)
            give_back()
        memory = self._memory_now() if self._policy.needs_memory(event) else NO_MEMORY
        for effect in self._policy.handle(event, self._clock.monotonic(), memory):
            self._perform(effect)

    def _memory_now(self) -> Memory:
        """What the next engine can have: what the prepared one holds is that one's own."""
        found = self._memory()
        return replace(found, available_bytes=found.available_bytes + self._prepared.held_bytes)

    def _is_quiet(self) -> bool:
        """Nobody asks for anything, and no engine comes or goes."""
        return not self._requests and all(p.state == "ready" for p in self._processes.values())

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, StartEngine):
            process = EngineProcess(effect.engine_id, effect.spec, self._host)
            self._processes[effect.engine_id] = process
            self.counts.started(effect.engine_id, self._clock.monotonic())
            process.start()
        elif isinstance(effect, StopEngine):
            self._processes[effect.engine_id].stop(effect.reason)
        elif isinstance(effect, Grant):
            self._answer(effect.request_id, self._processes[effect.engine_id])
        else:
            self._answer(effect.request_id, effect.error)

    def _answer(self, request_id: int, answer: EngineProcess | FtmanError) -> None:
        request = self._requests.get(request_id)
        if request is None or request.granted.done():
            return
        if isinstance(answer, EngineProcess):
            request.granted.set_result(answer)
        else:
            request.granted.set_exception(_fresh(answer))
        request.news.set()

    def _spread_news(self) -> None:
        for request in self._requests.values():
            if not request.granted.done():
                request.news.set()

    async def _tick(self) -> None:
        """Wake the policy when a keep-alive ends, and every second while somebody waits."""
        while True:
            self._turned.set()
            self._changed.clear()
            await wait_within(self._changed.wait(), self._tick_pause_s(), self._clock)
            deadline_s = self._policy.next_deadline_s()
            now_s = self._clock.monotonic()
            due = deadline_s is not None and now_s >= deadline_s
            if due or (self._policy.has_queue() and now_s >= self._fed_s + QUEUE_TICK_S):
                self._feed(Ticked())

    def _tick_pause_s(self) -> float:
        deadline_s, now_s = self._policy.next_deadline_s(), self._clock.monotonic()
        pause_s = 3600.0 if deadline_s is None else deadline_s - now_s
        if self._policy.has_queue():
            pause_s = min(pause_s, self._fed_s + QUEUE_TICK_S - now_s)
        return max(0.0, pause_s)

    def _engine(self, key: str) -> Engine | None:
        return next((e for e in self._policy.engines() if e.spec.key == key), None)

    def _describe(self, engine: Engine) -> RunningEngine:
        process = self._processes[engine.engine_id]
        left_s = engine.keep_alive_s if engine.leases else engine.expires_s - self._now_s()
        forever = engine.keep_alive_s < 0
        return RunningEngine(
            spec=engine.spec,
            state=engine.state,
            expires_wall_s=None if forever else self._clock.wall() + left_s,
            size_bytes=_size_bytes(process),
            size_vram_bytes=0 if _on_cpu(process) else _size_bytes(process),
            in_use=len(engine.leases),
            loaded_bytes=process.health.loaded_bytes,
            total_bytes=process.health.total_bytes,
            pid=process.child.pid if process.child is not None else 0,
            kv_format="" if process.info is None else process.info.kv_format,
        )

    def _life(self, process: EngineProcess) -> EngineLife:
        now_s, health = self._now_s(), process.health
        token_s = process.client.last_token_s if process.client is not None else None
        step_s = health.last_step_s
        return EngineLife(
            name=process.spec.name,
            key=process.spec.key,
            state=process.state,
            running=health.running,
            waiting=health.waiting,
            last_step_s=None if step_s is None else step_s + now_s - process.asked_s,
            last_token_s=None if token_s is None else now_s - token_s,
            stuck_s=process.stuck_s,
            stalls=process.stuck_s >= self._timings.wedge_s / 2,
        )

    def _now_s(self) -> float:
        return self._clock.monotonic()


def _size_bytes(process: EngineProcess) -> int:
    info = process.info
    return process.spec.need_bytes if info is None else info.weights_bytes + info.kv_bytes


def _on_cpu(process: EngineProcess) -> bool:
    device = process.spec.device if process.info is None else process.info.device
    return device in ("cpu", "auto", "emulated")


def _fresh(error: FtmanError) -> FtmanError:
    """A copy to raise: one error may answer many requests, and raising writes into it."""
    copy = type(error)(error.message, hint=error.hint, code=error.code, status=error.status)
    copy.__dict__.update(error.__dict__)
    return copy
