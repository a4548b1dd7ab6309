"""F1: SIGKILL of the real engine in the middle of an answer, with another request in the queue."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

from tests.e2e.faults import invariants, ledger
from tests.e2e.faults.manager_process import (
    CHAT,
    Answer,
    Rig,
    ask,
    engine_pids,
    in_background,
    runs,
    send_signal,
    until,
)
from tests.e2e.faults.real_models import endless_model
from tests.e2e.processes import REAL

GREEDY = {"temperature": 0, "num_predict": 3000, "num_ctx": 4096}
STREAM_LIMIT_S = 2.0
START_SLACK_S = 10.0
PATHS = ("/api/chat", "/v1/chat/completions")


def body_for(path: str) -> dict[str, Any]:
    """A long streamed answer in either dialect."""
    if path == "/api/chat":
        return CHAT | {"options": GREEDY}
    return CHAT | {"stream": True, "temperature": 0, "max_tokens": 3000}


@runs
def test_streams_end_with_a_typed_error_and_the_queue_goes_on(rig: Rig, num_points: int) -> None:
    model = endless_model(rig.root)
    with rig.manager(REAL, FT_NUM_PARALLEL="1", FT_CONTEXT_LENGTH="4096") as manager:
        pulled = rig.pull(manager.url, f"file://{model}")
        assert pulled.values[-1] == {"status": "success"}, pulled.lines
        short = CHAT | {"options": GREEDY | {"num_predict": 5}}
        started = time.monotonic()
        expected = ask(manager.url, short).text
        start_s = time.monotonic() - started
        before = None
        for number in range(num_points):
            after, path = rig.rng.randrange(1, 21), PATHS[number % 2]
            killed_at = one_kill(rig, manager.url, path, after, short, expected)
            spent_s = killed_at[1] - killed_at[0]
            ledger.level("R2", "next answer beyond a start, s", spent_s - start_s, 1)
            assert spent_s <= 2 * start_s + START_SLACK_S, (after, killed_at)
            if number == 1:  # by now every path has been taken once
                before = invariants.vitals(manager.process.pid)
        assert before is not None
        invariants.answers_when_healthy(manager.url)
        invariants.back_to(manager.process.pid, before)
    assert rig.check_store()


def one_kill(
    rig: Rig, url: str, path: str, after: int, short: dict[str, Any], expected: str
) -> tuple[float, float]:
    """Kill after `after` lines. Returns the times of the kill and of the queued answer's end."""
    (pid,) = until(lambda: engine_pids(rig.home))
    queued: list[Answer] = []
    at: list[float] = []
    reached = threading.Event()

    def on_line(answer: Answer) -> None:
        if len(answer.lines) == 1:
            reached.set()
        if len(answer.lines) == after:
            time.sleep(0.03)  # the other request gets into the queue
            send_signal(pid, signal.SIGKILL)
            at.append(time.monotonic())

    def wait_in_line() -> None:
        reached.wait(20)
        queued.append(ask(url, short))

    thread = in_background(wait_in_line)
    answer = ask(url, body_for(path), path, on_line)
    thread.join(40)
    assert answer.status == 200
    invariants.ended_once(answer)
    assert answer.error, (after, answer.lines[-1])
    assert not answer.complete
    assert answer.ended_s - at[0] <= 5 * STREAM_LIMIT_S
    ledger.level("R2", "error in the stream, s", answer.ended_s - at[0], STREAM_LIMIT_S)
    invariants.ended_once(queued[0])
    assert queued[0].text == expected, queued[0].lines
    assert pid not in engine_pids(rig.home)
    return at[0], queued[0].ended_s
