"""Service levels that no fault measures: signs of life, other calls under load, a full catalog."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from pathlib import Path

import httpx

from ftman.gateway.stream import HEARTBEAT_S
from tests.e2e.faults import ledger
from tests.e2e.faults.manager_process import NO_TLS, Rig, ask, fake, in_background
from tests.e2e.faults.talk import Talk
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import install, managing

NUM_MODELS = 200
NUM_CALLS = 60
NUM_STREAMS = 4
"""More would be slowed down by this process, not by the manager."""
PATHS = ("/api/tags", "/api/ps", "/health", "/metrics")
BEAT_S = 0.1
SILENCE_S = 0.5


def fill_catalog(models: Path) -> None:
    """The one model under two hundred names."""
    folder = next((models / "manifests").rglob("tiny"))
    for number in range(NUM_MODELS - 1):
        shutil.copytree(folder, folder.with_name(f"tiny{number}"))


def test_a_full_catalog_under_load_answers_in_time(rig: Rig) -> None:
    install(rig.paths)
    fill_catalog(rig.paths.models)
    command = fake(FakeScript(token_s=0.02))
    started = time.monotonic()
    with rig.manager(command) as manager:
        ledger.level("R6", f"start with {NUM_MODELS} models, s", time.monotonic() - started, 2)
        stopped = threading.Event()

        def talk() -> None:
            while not stopped.is_set():
                Talk("tiny", "load", 25).ask(manager.url)

        threads = [in_background(talk) for _ in range(NUM_STREAMS)]
        spent_s = []
        with httpx.Client(base_url=manager.url, trust_env=False, verify=NO_TLS) as client:
            assert len(client.get("/api/tags").json()["models"]) == NUM_MODELS
            for number in range(NUM_CALLS):
                called = time.monotonic()
                assert client.get(PATHS[number % len(PATHS)]).status_code == 200
                spent_s.append(time.monotonic() - called)
        stopped.set()
        for thread in threads:
            thread.join(20)
    spent_s.sort()
    ledger.level("R9", "p99 of other calls, s", spent_s[int(0.99 * len(spent_s))], 0.05)


def test_no_silence_is_longer_than_a_heartbeat_allows(tmp_path: Path) -> None:
    """In a load, in the queue behind another answer, before the first token."""
    script = FakeScript(load_s=SILENCE_S, load_steps=1, token_s=SILENCE_S)
    with managing(tmp_path, script, heartbeat_s=BEAT_S) as manager:
        heard_at = [time.monotonic()]
        body = Talk("tiny", "word", 2).body
        answer = ask(
            manager.url, body, "/api/generate", lambda _: heard_at.append(time.monotonic())
        )
        assert answer.complete
        beats = len([value for value in answer.values if not value.get("response")])
        silences = [b - a for a, b in itertools.pairwise(heard_at)]
        late_s = max(silences) - BEAT_S
        ledger.level("R5", "longest silence, s", HEARTBEAT_S + late_s, 10)
        assert beats >= 2 * SILENCE_S / BEAT_S / 2, answer.lines
