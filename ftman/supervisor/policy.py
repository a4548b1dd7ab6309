"""Which engine runs, who waits, who is evicted: a pure state machine, events in, effects out.

No clock, no loop, no I/O: time and memory are arguments, so that every order of events can be
tried. Performing the effects is supervisor.py's work; the event table is in README.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftman.errors import BusyError, FtmanError
from ftman.supervisor.fit import Fit, cannot_fit, judge_fit
from ftman.supervisor.policy_breaker import Breaker
from ftman.supervisor.policy_events import (
    Adopted,
    Arrived,
    Cancelled,
    Effect,
    EngineSpec,
    Exited,
    Failing,
    Grant,
    Limits,
    Loaded,
    Memory,
    PolicyEvent,
    Reject,
    Released,
    ShutdownAsked,
    StartEngine,
    StopEngine,
    Ticked,
    UnloadAsked,
)

LOADING, READY, STOPPING = "loading", "ready", "stopping"
QUEUE_FULL = "server busy, please try again.  maximum pending requests exceeded"


@dataclass
class Engine:
    """What the policy knows of one engine. Units: seconds; keep_alive_s negative = forever; bytes.

    promised_bytes: what it may fill in time, as it says itself; 0 = not known yet.
    """

    engine_id: int
    spec: EngineSpec
    state: str
    keep_alive_s: float
    last_used_s: float
    promised_bytes: int = 0
    leases: set[int] = field(default_factory=set)

    @property
    def expires_s(self) -> float:
        """When it is unloaded if nobody uses it; infinite = never."""
        return math.inf if self.keep_alive_s < 0 else self.last_used_s + self.keep_alive_s

    @property
    def taken_bytes(self) -> int:
        """What others cannot have: as foretold or, where that is more, as it says."""
        return max(self.spec.need_bytes, self.promised_bytes)

    @property
    def _worth(self) -> tuple[float, float]:
        kept = math.inf if self.keep_alive_s < 0 else self.keep_alive_s
        return kept, self.last_used_s


class Policy:
    """The decisions. `handle` is the only way in; everything else reads."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._breaker = Breaker(limits)
        self._queue: list[Arrived] = []
        self._engines: dict[str, Engine] = {}
        self._closing = False
        self._next_engine_id = 1
        self._draining: int | None = None  # busy engine that takes no new leases: the head needs it
        self._now_s = 0.0
        self._memory = Memory(0, 0)
        self._effects: list[Effect] = []
        self._positions: dict[int, int] = {}  # made on demand, good until the next event
        self._yields_until_s: dict[int, float] = {}  # background requests in the queue

    def handle(self, event: PolicyEvent, now_s: float, memory: Memory) -> list[Effect]:
        """Take one event and return what has to be done, in order.

        Units: now_s monotonic seconds; memory as it is now.
        """
        self._now_s, self._memory, self._effects = now_s, memory, []
        self._positions = {}
        if self._aged() and isinstance(event, Arrived):
            self._serve_queue()  # it may take the free place that the newcomer counts on
        _HANDLERS[type(event)](self, event)
        self._serve_queue()
        self._expire_idle()
        return self._effects

    def needs_memory(self, event: PolicyEvent) -> bool:
        """Whether `handle(event)` may look at memory; asking the system costs 0.2 ms."""
        return self.has_queue() or (isinstance(event, Arrived) and self._serving(event) is None)

    def engines(self) -> list[Engine]:
        """Engines that have a process, in the order of their start."""
        return sorted(self._engines.values(), key=lambda engine: engine.engine_id)

    def wants(self, key: str) -> bool:
        """Whether an engine of `key` runs or a request for it waits."""
        return key in self._engines or any(item.spec.key == key for item in self._queue)

    def position(self, request_id: int) -> int:
        """Place in the queue, from 1; 0 when it does not wait."""
        if not self._positions:
            self._positions = {item.request_id: n for n, item in enumerate(self._turns(), start=1)}
        return self._positions.get(request_id, 0)

    def why(self, request_id: int) -> str:
        """What a request in the queue waits for, in words; "" when it does not wait there."""
        item = next((item for item in self._queue if item.request_id == request_id), None)
        if item is None:
            return ""
        if self.loading_for(item.spec) is not None:
            return f"{item.spec.name} is being loaded"
        if self._serving(item) is not None:
            return f"it gives way to others while all places of {item.spec.name} are in use"
        draining = self._by_id(self._draining)
        if draining is not None:
            return f"{draining.spec.name} finishes {len(draining.leases)} requests, to make room"
        for state, text in ((STOPPING, "{} ends, to make room"), (LOADING, "{} is loaded first")):
            busy = next((e for e in self._engines.values() if e.state == state), None)
            if busy is not None:
                return text.format(busy.spec.name)
        return "requests before it are served first"

    def beyond_parallel(self) -> list[tuple[int, int, str]]:
        """Requests that hold an engine but wait inside it: id, place from 1, and the reason.

        Engines take them in the order in which they came.
        """
        found = []
        for engine in self._engines.values():
            places = engine.spec.num_parallel
            reason = f"all {places} places of {engine.spec.name} are in use"
            waiting = sorted(engine.leases)[places:]
            found += [(request_id, n, reason) for n, request_id in enumerate(waiting, start=1)]
        return found

    def loading_for(self, spec: EngineSpec) -> int | None:
        """The id of the engine under way that will serve `spec`."""
        engine = self._engines.get(spec.key)
        if engine and engine.state == LOADING and engine.spec.same_engine(spec):
            return engine.engine_id
        return None

    def num_waiting(self) -> int:
        """Requests that wait for an engine or, having one, for a free sequence of it."""
        over = (len(e.leases) - e.spec.num_parallel for e in self._engines.values())
        return len(self._queue) + sum(count for count in over if count > 0)

    def has_queue(self) -> bool:
        """Whether any request has no engine yet."""
        return bool(self._queue)

    def next_deadline_s(self) -> float | None:
        """When a Ticked event is due, if nothing else happens."""
        idle = [e.expires_s for e in self._engines.values() if e.state == READY and not e.leases]
        soonest = min(idle, default=math.inf)
        return None if math.isinf(soonest) else soonest

    def _arrived(self, event: Arrived) -> None:
        if self._closing:
            self._reject(event, _shutting_down())
            return
        engine = self._serving(event)
        free = engine is not None and len(engine.leases) < engine.spec.num_parallel
        if not free and self.num_waiting() >= self._limits.max_queue:
            self._reject(event, BusyError(QUEUE_FULL, code="queue_full"))
            return
        self._queue.append(event)
        if event.background:
            self._yields_until_s[event.request_id] = self._now_s + self._limits.background_s

    def _cancelled(self, event: Cancelled) -> None:
        self._queue = [item for item in self._queue if item.request_id != event.request_id]
        self._yields_until_s.pop(event.request_id, None)
        self._abort_unwanted_load()

    def _released(self, event: Released) -> None:
        for engine in self._engines.values():
            if event.request_id in engine.leases:
                engine.leases.remove(event.request_id)
                engine.last_used_s = self._now_s

    def _loaded(self, event: Loaded) -> None:
        engine = self._by_id(event.engine_id)
        if engine is not None and engine.state == LOADING:
            engine.state, engine.last_used_s = READY, self._now_s
            engine.promised_bytes = event.promised_bytes
            self._breaker.succeeded(engine.spec)

    def _failing(self, event: Failing) -> None:
        engine = self._by_id(event.engine_id)
        if engine is not None and engine.state == READY:
            engine.state = STOPPING  # by itself: nothing to perform, and nothing more to grant

    def _exited(self, event: Exited) -> None:
        engine = self._by_id(event.engine_id)
        if engine is None:
            return
        del self._engines[engine.spec.key]
        if engine.state != LOADING:
            return
        self._breaker.failed(engine.spec, self._now_s, event.error)
        for item in tuple(self._queue):
            if item.spec.same_engine(engine.spec):
                self._reject(item, event.error)

    def _adopted(self, event: Adopted) -> None:
        self._next_engine_id = max(self._next_engine_id, event.engine_id + 1)
        engine = self._new_engine(event.engine_id, event.spec, READY)
        engine.promised_bytes = event.promised_bytes
        if self._closing:
            self._stop(engine, "shutdown")

    def _unload_asked(self, event: UnloadAsked) -> None:
        engine = self._engines.get(event.key)
        if engine is not None:
            engine.keep_alive_s = 0.0

    def _ticked(self, _: Ticked) -> None:
        pass

    def _shutdown_asked(self, _: ShutdownAsked) -> None:
        self._closing = True
        for item in tuple(self._queue):
            self._reject(item, _shutting_down())
        for engine in self._engines.values():
            self._stop(engine, "shutdown")

    def _serve_queue(self) -> None:
        """Grant all that can be granted; the first request that cannot gets the next decision."""
        draining, self._draining = self._draining, None
        decided = False
        for item in self._turns():
            engine = self._serving(item)
            if engine is not None:
                # Beyond its places an engine goes by arrival: nobody could be let past there.
                if not self._yields(item) or len(engine.leases) < engine.spec.num_parallel:
                    self._grant(item, engine)
            elif not decided and self.loading_for(item.spec) is None:
                decided = self._decide(item, draining)

    def _decide(self, item: Arrived, draining: int | None) -> bool:
        """Start, evict or refuse for the head of the queue; False when it was refused."""
        if any(engine.state != READY for engine in self._engines.values()):
            self._draining = draining if self._by_id(draining) else None
            return True
        engines = list(self._engines.values())
        others = [engine.taken_bytes for engine in engines]
        error: FtmanError | None = self._breaker.refusal(item.spec, self._now_s)
        fit = judge_fit(item.spec.need_bytes, self._memory, others)
        if error is None and fit is Fit.NEVER:
            error = cannot_fit(item.spec, self._memory, others)
        if error is not None:
            self._reject(item, error)
            return False
        own = self._engines.get(item.spec.key)
        if own is None and fit is not Fit.EVICT and len(engines) < self._limits.max_loaded_models:
            self._start(item.spec)
            return True
        reason, victims = ("evicted", engines) if own is None else ("reload", [own])
        if self._yields(item):
            victims = [engine for engine in victims if not engine.leases]
        self._evict(victims, draining, reason)
        return True

    def _turns(self) -> list[Arrived]:
        """The queue in the order in which it is served: those that give way come last."""
        return sorted(self._queue, key=self._yields) if self._yields_until_s else list(self._queue)

    def _yields(self, item: Arrived) -> bool:
        return item.request_id in self._yields_until_s

    def _aged(self) -> bool:
        """Let background requests that gave way for long be like any other; whether there are."""
        aged = [key for key, until_s in self._yields_until_s.items() if until_s <= self._now_s]
        for key in aged:
            del self._yields_until_s[key]
        return bool(aged)

    def _evict(self, engines: Sequence[Engine], draining: int | None, reason: str) -> None:
        """Stop the least worthy idle engine; if all are busy, let one run dry.

        The one running dry stays the same from turn to turn: changing it would let a steady
        stream of requests keep every engine busy for ever.
        """
        if not engines:
            return
        ranked = sorted(engines, key=lambda engine: engine._worth)
        for engine in ranked:
            if not engine.leases:
                self._stop(engine, reason)
                return
        kept = [engine for engine in ranked if engine.engine_id == draining]
        self._draining = (kept or ranked)[0].engine_id

    def _expire_idle(self) -> None:
        for engine in self._engines.values():
            if engine.state == READY and not engine.leases and engine.expires_s <= self._now_s:
                self._stop(engine, "idle")

    def _abort_unwanted_load(self) -> None:
        for engine in self._engines.values():
            wanted = any(item.spec.same_engine(engine.spec) for item in self._queue)
            if engine.state == LOADING and not wanted:
                self._stop(engine, "cancelled")

    def _serving(self, item: Arrived) -> Engine | None:
        engine = self._engines.get(item.spec.key)
        if engine is None or engine.state != READY or engine.engine_id == self._draining:
            return None
        return engine if engine.spec.same_engine(item.spec) else None

    def _start(self, spec: EngineSpec) -> None:
        engine = self._new_engine(self._next_engine_id, spec, LOADING)
        self._next_engine_id += 1
        self._effects.append(StartEngine(engine.engine_id, spec))

    def _new_engine(self, engine_id: int, spec: EngineSpec, state: str) -> Engine:
        engine = Engine(engine_id, spec, state, self._limits.keep_alive_s, self._now_s)
        self._engines[spec.key] = engine
        return engine

    def _stop(self, engine: Engine, reason: str) -> None:
        if engine.state != STOPPING:
            engine.state = STOPPING
            self._effects.append(StopEngine(engine.engine_id, reason))

    def _grant(self, item: Arrived, engine: Engine) -> None:
        self._queue.remove(item)
        self._yields_until_s.pop(item.request_id, None)
        engine.leases.add(item.request_id)
        engine.last_used_s = self._now_s
        if item.keep_alive_s is not None:
            engine.keep_alive_s = item.keep_alive_s
        self._effects.append(Grant(item.request_id, engine.engine_id))

    def _reject(self, item: Arrived, error: FtmanError) -> None:
        if item in self._queue:
            self._queue.remove(item)
        self._yields_until_s.pop(item.request_id, None)
        self._effects.append(Reject(item.request_id, error))

    def _by_id(self, engine_id: int | None) -> Engine | None:
        found = (e for e in self._engines.values() if e.engine_id == engine_id)
        return next(found, None)


def _shutting_down() -> BusyError:
    return BusyError(
        "the manager is shutting down and takes no new requests",
        hint="Start it again with: ft serve",
        code="shutting_down",
    )


_HANDLERS: dict[type, Callable[[Policy, Any], None]] = {
    Arrived: Policy._arrived,
    Cancelled: Policy._cancelled,
    Released: Policy._released,
    Loaded: Policy._loaded,
    Failing: Policy._failing,
    Exited: Policy._exited,
    Adopted: Policy._adopted,
    UnloadAsked: Policy._unload_asked,
    Ticked: Policy._ticked,
    ShutdownAsked: Policy._shutdown_asked,
}
