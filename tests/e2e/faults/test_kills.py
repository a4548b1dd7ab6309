"""Random kills: of engines under load, and of managers under load, a thousand and five hundred.

None broken in so many means fewer than 0.3 % and 0.6 %, at a confidence of 95 %.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest

from ftman.catalog.catalog import Catalog
from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.forks import Forked, Forks
from tests.e2e.faults.manager_process import (
    NO_TLS,
    Rig,
    engine_pid,
    in_background,
    send_signal,
    until,
)
from tests.e2e.faults.talk import Talk, models_named, random_word
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import install

SCRIPT = FakeScript(token_s=0.002)
MODELS = 3
LANES = 3
CLIENTS = 2
LOADED = 3
YOUNG_S = 0.5
KILL_EVERY_S = 0.1
"""At most. Engines are started one after the other, and some are to live long enough to answer."""
ENGINE_KILLS = pytest.mark.parametrize(
    "num_points", [20, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
MANAGER_KILLS = pytest.mark.parametrize(
    "num_points", [10, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)


@dataclass
class Load:
    """Clients that ask until told to stop. errors: how their answers ended, by its words."""

    url: str
    rng: random.Random
    may_break: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)
    asked: int = 0
    complete: int = 0
    refused: int = 0
    broken: int = 0
    faults: list[BaseException] = field(default_factory=list)

    def client(self, seed: int) -> None:
        """One after the other, each answer checked."""
        rng = random.Random(seed)
        while not self.stopped.is_set() and not self.faults:
            talk = Talk(f"m{rng.randrange(MODELS)}", random_word(rng), rng.randrange(1, 20))
            try:
                answer = talk.ask(self.url, may_break=self.may_break)
            except BaseException as error:
                self.faults.append(error)
                return
            self.asked += 1
            self.complete += answer.complete
            self.broken += answer.broken
            if answer.broken:
                return
            if answer.status == 503:
                self.refused += 1
                self.stopped.wait(0.02)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """With all clients."""
        seeds = [self.rng.randrange(1 << 32) for _ in range(CLIENTS)]
        threads = [in_background(partial(self.client, seed)) for seed in seeds]
        try:
            yield
        finally:
            self.stopped.set()
            for thread in threads:
                thread.join(40)
        if self.faults:
            raise self.faults[0]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(SCRIPT) as started:
        yield started


def in_lanes(rig: Rig, work: Callable[[Rig, int], None], num_points: int) -> None:
    """Divide kills among stores that are worked on side by side."""
    rigs = [
        Rig(rig.root / f"lane-{number}", random.Random(rig.rng.random())) for number in range(LANES)
    ]
    shares = [len(range(number, num_points, LANES)) for number in range(LANES)]
    with ThreadPoolExecutor(LANES) as pool:
        list(pool.map(work, rigs, shares))


@ENGINE_KILLS
def test_engines_killed_at_random_break_no_invariant(
    rig: Rig, forks: Forks, num_points: int
) -> None:
    in_lanes(rig, partial(engines_killed, forks), num_points)


def engines_killed(forks: Forks, rig: Rig, count: int) -> None:
    """One manager, whose engines are killed."""
    for model in models_named(MODELS):
        install(rig.paths, model)
    with rig.forked(forks, FT_MAX_LOADED_MODELS=str(LOADED)) as manager:
        # By then every path has been taken, and memory is what it will be.
        under_fire(rig, manager, count // 2)
        before = invariants.vitals(manager.pid)
        complete = under_fire(rig, manager, count - count // 2)
        invariants.one_engine_per_key(rig.home)
        invariants.back_to(manager.pid, before)
        assert complete >= count // 40, complete
    rig.check_store()
    invariants.no_orphans(rig.paths.models)


def under_fire(rig: Rig, manager: Forked, count: int) -> int:
    """Clients ask while engines are killed; then all heals. Returns the complete answers."""
    load = Load(manager.url, rig.rng)
    with load.running():
        kill_engines(rig, load, count)
    healed(manager.url)
    return load.complete


def kill_engines(rig: Rig, load: Load, count: int) -> None:
    """Kill one engine after another, in whatever it does.

    No engine is killed young twice in a row: three failed starts would have it left alone for
    minutes, and nothing would be left to kill.
    """
    done, killed = 0, set()
    seen_at: dict[int, float] = {}
    killed_young: set[str] = set()
    while done < count and not load.faults:
        time.sleep(rig.rng.uniform(0, KILL_EVERY_S))
        now = time.monotonic()
        found = {engine_pid(rig.home, f"m{n}"): f"m{n}" for n in range(MODELS)}
        ages = {p: now - seen_at.setdefault(p, now) for p in found if p and p not in killed}
        fit = [p for p, age in ages.items() if age > YOUNG_S or found[p] not in killed_young]
        if fit:
            pid = rig.rng.choice(fit)
            send_signal(pid, signal.SIGKILL)
            (killed_young.discard if ages[pid] > YOUNG_S else killed_young.add)(found[pid])
            killed.add(pid)
            done += 1


def healed(url: str) -> None:
    """Every model answers again, at the latest when its breaker closes."""

    def answers(model: str) -> bool:
        return Talk(model, "again", 2).ask(url).complete

    for number in range(MODELS):
        until(lambda number=number: answers(f"m{number}"), 45)  # type: ignore[misc]
    invariants.answers_when_healthy(url, "m0")


@dataclass
class Editor:
    """Copies, makes and removes names, and knows what must be there. state: name -> FTW id."""

    rng: random.Random
    state: dict[str, str]
    begun: dict[str, str] | None = None

    def work(self, url: str, stopped: threading.Event) -> None:
        """One change after another, until the manager is gone."""
        with httpx.Client(base_url=url, trust_env=False, verify=NO_TLS, timeout=60) as client:
            while not stopped.is_set():
                method, path, body, after = self._change()
                self.begun = after
                try:
                    reply = client.request(method, path, json=body)
                except httpx.TransportError:
                    return
                assert reply.status_code == 200, (body, reply.text)
                self.state, self.begun = after, None

    def _change(self) -> tuple[str, str, dict[str, Any], dict[str, str]]:
        name = f"c{self.rng.randrange(4)}"
        key, source = f"{name}/latest", self.state["m0/latest"]
        if key in self.state:
            after = {k: v for k, v in self.state.items() if k != key}
            return "DELETE", "/api/delete", {"model": name}, after
        after = {**self.state, key: source}
        if self.rng.random() < 0.5:
            return "POST", "/api/copy", {"source": "m0", "destination": name}, after
        body = {"model": name, "from": "m0", "system": random_word(self.rng), "stream": False}
        return "POST", "/api/create", body, after

    def found(self, present: dict[str, str]) -> None:
        """I3: what is there after a kill is what was acknowledged, or what had begun."""
        invariants.one_of(present, [self.state, *([self.begun] if self.begun else [])])
        self.state, self.begun = present, None


@MANAGER_KILLS
def test_managers_killed_at_random_break_no_invariant(
    rig: Rig, forks: Forks, num_points: int
) -> None:
    in_lanes(rig, partial(managers_killed, forks), num_points)


def managers_killed(forks: Forks, rig: Rig, count: int) -> None:
    """One store, whose managers are killed."""
    for model in models_named(MODELS):
        install(rig.paths, model)
    editor = Editor(rig.rng, rig.check_store())
    for number in range(count):
        environment = rig.environment(FT_ADOPT=rig.rng.choice("01"), FT_MAX_LOADED_MODELS="2")
        if number % 5 == 4:
            manager = forks.launch(rig.home, environment)
            time.sleep(rig.rng.uniform(0, 0.1))
        else:
            started = time.monotonic()
            manager = forks.start(rig.home, environment)
            ledger.level("R6", "answers after a fork, s", time.monotonic() - started, 2)
            invariants.one_engine_per_key(rig.home)
            disturbed(rig, manager, editor)
        manager.signal(signal.SIGKILL)
        assert manager.wait() == -signal.SIGKILL, manager.log[-2000:]
        invariants.no_traceback(manager.log)
        editor.found(rig.check_store())
    with rig.forked(forks) as last:
        healed(last.url)
    invariants.acknowledged(rig.check_store(), editor.state, editor.state)
    Catalog(rig.paths, lambda _: None).sweep([], grace_s=-1e6)
    invariants.no_orphans(rig.paths.models)


def disturbed(rig: Rig, manager: Forked, editor: Editor) -> None:
    """Load on a manager that is killed in the middle of it."""
    load = Load(manager.url, rig.rng, may_break=True)
    failed: list[BaseException] = []

    def edit() -> None:
        try:
            editor.work(manager.url, load.stopped)
        except BaseException as error:
            failed.append(error)

    thread = in_background(edit)
    with load.running():
        time.sleep(rig.rng.uniform(0, 0.15))
        manager.signal(signal.SIGKILL)
    thread.join(20)
    if failed:
        raise failed[0]
