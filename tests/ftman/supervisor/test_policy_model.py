"""Every order of events in a small world, and random orders in a bigger one, against plain rules.

The rules: an engine per key, no more engines than slots; a grant only on a ready engine of the
same spec; every request answered exactly once; when nothing moves any more, nobody waits.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from ftman.errors import EngineDiedError
from ftman.supervisor.policy import Policy
from ftman.supervisor.policy_events import (
    Arrived,
    Cancelled,
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
from tests.ftman.supervisor.harness import GIB, make_spec

DIED = EngineDiedError("killed")


@dataclass
class World:
    """The outside of the policy: what processes and requests there are, by the plain rules."""

    policy: Policy
    slots: int
    max_queue: int
    memory: Memory = field(default_factory=lambda: Memory(16 * GIB, 16 * GIB))
    now_s: float = 0.0
    engines: dict[int, str] = field(default_factory=dict)  # starting, ready, stopping
    specs: dict[int, EngineSpec] = field(default_factory=dict)
    requests: dict[int, str] = field(default_factory=dict)  # waiting, granted, over
    wanted: dict[int, EngineSpec] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    closing: bool = False

    def do(self, event: PolicyEvent) -> None:
        self._before(event)
        memory = self.memory if self.policy.needs_memory(event) else Memory(0, 0)
        for effect in self.policy.handle(event, self.now_s, memory):
            if isinstance(effect, Reject):
                assert effect.error.code != "cannot_fit" or memory.total_bytes
            self._obey(effect)
        self._check()

    def _before(self, event: PolicyEvent) -> None:
        if isinstance(event, Arrived):
            self.requests[event.request_id] = "waiting"
            self.wanted[event.request_id] = event.spec
        elif isinstance(event, Cancelled | Released):
            self.requests[event.request_id] = "over"
            self.held.pop(event.request_id, None)
        elif isinstance(event, Loaded):
            self.engines[event.engine_id] = "ready"
        elif isinstance(event, Failing) and self.engines[event.engine_id] == "ready":
            self.engines[event.engine_id] = "stopping"
        elif isinstance(event, Exited):
            del self.engines[event.engine_id]
        elif isinstance(event, ShutdownAsked):
            self.closing = True

    def _obey(self, effect: object) -> None:
        if isinstance(effect, StartEngine):
            assert not self.closing
            assert effect.engine_id not in self.specs, "an engine id was used twice"
            self.engines[effect.engine_id] = "starting"
            self.specs[effect.engine_id] = effect.spec
        elif isinstance(effect, StopEngine):
            assert self.engines[effect.engine_id] in ("starting", "ready"), "stopped twice"
            in_use = effect.engine_id in self.held.values()
            assert not in_use or self.closing, "stopped under a request"
            self.engines[effect.engine_id] = "stopping"
        elif isinstance(effect, Grant):
            assert self.requests[effect.request_id] == "waiting", "answered twice"
            assert self.engines[effect.engine_id] == "ready"
            assert self.specs[effect.engine_id].same_engine(self.wanted[effect.request_id])
            self.requests[effect.request_id] = "granted"
            self.held[effect.request_id] = effect.engine_id
        else:
            assert isinstance(effect, Reject)
            assert self.requests[effect.request_id] == "waiting", "answered twice"
            self.requests[effect.request_id] = "over"

    def _check(self) -> None:
        assert len(self.engines) <= self.slots
        keys = [self.specs[engine_id].key for engine_id in self.engines]
        assert len(keys) == len(set(keys))
        waiting = sum(state == "waiting" for state in self.requests.values())
        assert waiting <= self.max_queue
        known = {(e.engine_id, e.state) for e in self.policy.engines()}
        names = {"starting": "loading", "ready": "ready", "stopping": "stopping"}
        assert known == {(i, names[state]) for i, state in self.engines.items()}

    def progress(self) -> Iterator[PolicyEvent]:
        """What happens by itself sooner or later, crashes aside."""
        for engine_id, state in self.engines.items():
            if state == "starting":
                yield Loaded(engine_id)
            if state == "stopping":
                yield Exited(engine_id, DIED)
        for request_id, state in self.requests.items():
            if state == "granted":
                yield Released(request_id)

    def crashes(self) -> Iterator[PolicyEvent]:
        for engine_id, state in self.engines.items():
            if state != "stopping":
                yield Exited(engine_id, DIED)
                yield Failing(engine_id)

    def cancels(self) -> Iterator[PolicyEvent]:
        for request_id, state in self.requests.items():
            if state == "waiting":
                yield Cancelled(request_id)

    def settle(self) -> None:
        """Let everything run out; then nobody may be waiting."""
        for _ in range(10_000):
            event = next(self.progress(), None)
            if event is None:
                break
            self.do(event)
        else:
            pytest.fail("the world does not come to rest")
        assert "waiting" not in self.requests.values(), "a request waits for ever"


def _fingerprint(world: World, crashes: int, ticks: int) -> str:
    engines = [(e, e.leases) for e in world.policy.engines()]
    policy = world.policy
    hidden = (policy._queue, policy._yields_until_s, policy._draining, policy._breaker._streaks)
    return repr((engines, hidden, sorted(world.requests.items()), crashes, ticks, world.now_s))


def _explore(wishes: list[Arrived], crashes: int, ticks: int) -> int:
    """Try every order; returns the number of different states."""
    limits = Limits(max_queue=8, max_loaded_models=1, keep_alive_s=5.0)
    stack = [(World(Policy(limits), slots=1, max_queue=8), crashes, ticks)]
    seen: set[str] = set()
    while stack:
        world, crashes, ticks = stack.pop()
        mark = _fingerprint(world, crashes, ticks)
        if mark in seen:
            continue
        seen.add(mark)
        progress = list(world.progress())
        if not progress:
            assert "waiting" not in world.requests.values(), "a request waits for ever"
        new = [wish for wish in wishes if wish.request_id not in world.requests]
        branches = [(event, crashes, ticks) for event in (*progress, *world.cancels(), *new)]
        if crashes:
            branches += [(event, crashes - 1, ticks) for event in world.crashes()]
        if ticks and world.policy.next_deadline_s() is not None:
            branches.append((Ticked(), crashes, ticks - 1))
        for event, crashes_left, ticks_left in branches:
            after = copy.deepcopy(world)
            if isinstance(event, Ticked):
                after.now_s = after.policy.next_deadline_s() or after.now_s
            after.do(event)
            stack.append((after, crashes_left, ticks_left))
    return len(seen)


A, B, A_LONG = make_spec("aaaa"), make_spec("bbbb"), make_spec("aaaa", context_tokens=8192)


@pytest.mark.parametrize("background", [None, 1], ids=["equals", "one gives way"])
@pytest.mark.parametrize(
    "specs",
    [(A, B, A), (A, A_LONG, A), (A, B, A_LONG)],
    ids=["two models", "two contexts", "both"],
)
def test_every_order_of_three_requests_on_one_slot_with_a_crash_at_any_step(
    specs: tuple[EngineSpec, ...], background: int | None
) -> None:
    wishes = [
        Arrived(n, spec, 0.0 if n == 1 else None, n == background) for n, spec in enumerate(specs)
    ]
    states = _explore(wishes, crashes=2, ticks=2)
    assert states > 500, "the world got smaller: is every event still tried?"


def _random_run(seed: int) -> None:
    rng = random.Random(seed)
    slots, max_queue = rng.choice((1, 2, 3)), rng.choice((1, 2, 6))
    limits = Limits(max_queue=max_queue, max_loaded_models=slots, keep_alive_s=30.0)
    world = World(Policy(limits), slots, max_queue)
    specs = (A, B, A_LONG, make_spec("cccc", need_bytes=9 * GIB), make_spec("dddd", num_parallel=1))
    for number in range(rng.randrange(5, 40)):
        world.now_s += rng.choice((0.0, 0.0, 0.5, 4.0, 40.0))
        world.memory = Memory(16 * GIB, rng.choice((0, 4, 10, 16)) * GIB)
        events: list[PolicyEvent] = [Ticked(), UnloadAsked(rng.choice("abcd") * 4)]
        keep_alive_s, background = rng.choice((None, 0.0, 2.0, -1.0)), rng.random() < 0.3
        events += [Arrived(number, rng.choice(specs), keep_alive_s, background)] * 3
        events += [*world.progress()] * 2 + [*world.crashes(), *world.cancels()]
        if rng.random() < 0.01:
            events = [ShutdownAsked()]
        world.do(rng.choice(events))
    world.memory = Memory(16 * GIB, 16 * GIB)
    world.settle()
    if world.closing:
        assert not world.engines, "an engine outlives the shutdown"


def test_random_orders_keep_the_rules() -> None:
    for seed in range(1500):
        _random_run(seed)


@pytest.mark.slow
def test_a_hundred_thousand_random_orders_keep_the_rules() -> None:
    for seed in range(100_000):
        _random_run(seed)
