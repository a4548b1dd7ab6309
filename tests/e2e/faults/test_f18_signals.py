"""F18: SIGTERM, SIGINT once and twice, SIGHUP while answers are made and others wait.

That an interrupted pull goes on where it was stopped is in test_f05_manager_killed_in_pull.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import httpx
import pytest

from ftman.config import Paths
from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.forks import Forked, Forks
from tests.e2e.faults.manager_process import Answer, Rig, engines, in_background, runs, until
from tests.e2e.faults.talk import Talk, random_word
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import install

GRACE_S = 20.0
CUT_LIMIT_S = 3.0
SIGNALS = {
    "term": (signal.SIGTERM,),
    "int": (signal.SIGINT,),
    "hup": (signal.SIGHUP,),
    "int twice": (signal.SIGINT, signal.SIGINT),
    "term, int": (signal.SIGTERM, signal.SIGINT),
}
TOKEN_S = 0.005


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(FakeScript(token_s=TOKEN_S)) as started:
        yield started


@runs
def test_answers_are_finished_or_cut_and_the_exit_is_clean(
    rig: Rig, forks: Forks, num_points: int
) -> None:
    install(Paths(rig.home, rig.home / "models"))
    for number in range(num_points):
        name = list(SIGNALS)[number % len(SIGNALS)]
        with rig.forked(forks, FT_NUM_PARALLEL="2") as manager:
            one_end(rig, manager, SIGNALS[name])
        rig.check_store()


def one_end(rig: Rig, manager: Forked, numbers: tuple[int, ...]) -> None:
    """Three answers under way, for two places; then the signals, and one more request."""
    cut = len(numbers) > 1
    talks = [Talk("tiny", random_word(rig.rng), 400 if cut else 150) for _ in range(3)]
    answers: list[Answer] = []
    threads = [
        in_background(lambda talk=talk: answers.append(talk.ask(manager.url)))  # type: ignore[misc]
        for talk in talks
    ]
    until(lambda: sum(item["ft"]["in_use"] for item in engines(manager.url)) == len(talks))
    time.sleep(rig.rng.uniform(0, 0.05))
    manager.signal(numbers[0])
    signalled_at = time.monotonic()
    refused(manager.url, signalled_at)
    for number in numbers[1:]:
        manager.signal(number)
    for thread in threads:
        thread.join(GRACE_S)
    assert len(answers) == len(talks)
    code = manager.wait()
    spent_s = time.monotonic() - signalled_at
    assert code == 0, manager.log[-2000:]
    ledger.level("R10", "exit code", abs(code), 0)
    ledger.level("R10", "cut at once, s" if cut else "ended in order, s", spent_s, GRACE_S)
    for answer in answers:
        assert answer.complete != cut, (numbers, answer.lines[-1:])
        assert cut == ("shutting down" in answer.error), answer.lines[-1]
    if cut:
        assert spent_s <= CUT_LIMIT_S


def refused(url: str, signalled_at: float) -> None:
    """From the signal on no request is admitted: by a typed refusal or by no connection."""
    body = Talk("tiny", "late", 2).body
    try:
        reply = httpx.post(f"{url}/api/generate", json=body, trust_env=False, timeout=60)
    except httpx.TransportError:
        return
    if reply.status_code == 200:
        # The signal may come a moment after the request that was sent after it.
        assert time.monotonic() - signalled_at < 5, reply.text
        return
    assert reply.status_code == 503, reply.text
    invariants.told_why(reply)
