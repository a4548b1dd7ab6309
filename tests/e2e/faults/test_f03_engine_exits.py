"""F3: the engine ends itself, in every way and at every stage."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import httpx

from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.manager_process import Rig, engine_pid, runs, until
from tests.e2e.faults.talk import Starts, Talk, models_named, random_word
from tests.fakes.engine import FakeScript
from tests.ftman.supervisor.harness import QUICK

PATIENT = replace(QUICK, cause_s=5.0)
"""A busy machine may tell of an end a second late."""

LANES = 5
STREAM_LIMIT_S = 2.0
STAGES = ("start", "load", "ready", "idle", "prefill", "token")
WORDS = {
    "exit:0": "exit code 0",
    "exit:1": "exit code 1",
    "exit:137": "exit code 137",
    "segv": "SIGSEGV",
    "kill": "SIGKILL",
}
GOOD = FakeScript(token_s=0.002)


@dataclass(frozen=True)
class End:
    """One way to end: where, how, and after how many tokens."""

    talk: Talk
    stage: str
    how: str
    after: int

    @property
    def script(self) -> FakeScript:
        """Of the engine that ends."""
        last = "bank 3 is on fire"
        return FakeScript(
            die_at=self.stage, die=self.how, die_after=self.after, token_s=0.002, last_words=last
        )


@runs
def test_every_end_names_its_cause_and_the_next_request_is_served(
    rig: Rig, num_points: int
) -> None:
    ends = [
        End(
            Talk(f"m{number}", random_word(rig.rng)),
            rig.rng.choice(STAGES),
            rig.rng.choice(list(WORDS)),
            rig.rng.randrange(12),
        )
        for number in range(num_points)
    ]
    starts = Starts({end.talk.model: (end.script, GOOD) for end in ends}, GOOD)
    with (
        rig.inside(starts, models_named(num_points), PATIENT, max_loaded_models=LANES) as manager,
        ThreadPoolExecutor(LANES) as pool,
    ):
        list(pool.map(lambda end: one_end(rig, manager.url, end, starts), ends))
        invariants.answers_when_healthy(manager.url, "m0")


def one_end(rig: Rig, url: str, end: End, starts: Starts) -> None:
    """Ask, see it end, ask again. Who has heard nothing yet is asked for at a new engine."""
    seen_at: list[float] = []
    answer = end.talk.ask(url, lambda answer: seen_at.append(time.monotonic()))
    if end.stage == "idle" and starts.count(end.talk.model) == 1:
        until(lambda: not engine_pid(rig.home, end.talk.model), 5)
    elif not answer.complete:
        known = (WORDS[end.how], "is on fire")
        assert all(word in answer.error for word in known), (end, answer.lines[-1])
        if len(seen_at) > 1:  # the one before the last was the last token
            spent_s = seen_at[-1] - seen_at[-2]
            ledger.level("R2", "error in the stream, s", spent_s, STREAM_LIMIT_S)
    assert not answer.complete or end.stage == "idle" or starts.count(end.talk.model) == 2, end
    asked_at = time.monotonic()
    assert end.talk.ask(url).complete
    ledger.level("R2", "next answer with its start, s", time.monotonic() - asked_at, 5)


def test_three_failed_starts_are_refused_at_once_with_the_first_cause(rig: Rig) -> None:
    broken = FakeScript(load_error="tensor layers.0.router is missing")
    starts = Starts({"m0": (broken,)}, GOOD)
    with rig.inside(starts, models_named(2)) as manager:
        for _ in range(3):
            answer = Talk("m0", "word").ask(manager.url)
            assert "layers.0.router is missing" in answer.error
        reply = httpx.post(f"{manager.url}/api/generate", json=Talk("m0", "w").body, timeout=60)
        assert reply.status_code == 503, reply.text
        invariants.told_why(reply)
        assert "layers.0.router is missing" in reply.json()["error"]
        assert 0 < int(reply.headers["retry-after"]) <= 10
        assert starts.count("m0") == 3
        ledger.level("R8", "starts before the refusal", starts.count("m0"), 3)
        ledger.level("R8", "first Retry-After, s", int(reply.headers["retry-after"]), 10)
        assert Talk("m1", "other").ask(manager.url).complete
