"""What /health and /api/ft/health say of the scheduler and of engines that work, stick or lie."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftman.config import EngineSettings
from ftman.service import life as life_module
from ftman.supervisor.watch import Timings
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Manager, ids_of, make_config, managing
from tests.ftman.gateway.test_faults import CHAT, until

ONE_PLACE = EngineSettings(num_parallel=1, threads=1, adopt=False)
SHORT = CHAT | {"stream": False, "options": {"num_predict": 1}}


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with managing(tmp_path, FakeScript(tokens=ids_of("ok"))) as found:
        yield found


def test_without_engines_the_scheduler_speaks_for_itself(manager: Manager) -> None:
    told = manager.http.get("/api/ft/health").json()
    assert told["status"] == "ok"
    assert 0 <= told["scheduler_s"] < 10
    assert (told["queue"], told["engines"]) == (0, [])
    assert manager.http.get("/api/ft/health?deep=1").json()["probes"] == []
    assert manager.http.get("/api/ft/health?deep=maybe").status_code == 400


def test_an_engine_tells_of_its_last_step_and_token(manager: Manager) -> None:
    manager.http.post("/api/chat", json=SHORT)
    (engine,) = manager.http.get("/api/ft/health").json()["engines"]
    assert engine["name"] == "tiny:latest"
    assert 0 <= engine["last_token_s"] < 5
    assert engine["stuck_s"] == 0
    assert not engine["stalls"]


def test_the_deep_probe_makes_a_token_and_keeps_nothing_loaded(manager: Manager) -> None:
    manager.http.post("/api/chat", json=SHORT | {"keep_alive": 0.4})
    expires = [m["expires_at"] for m in manager.http.get("/api/ps").json()["models"]]
    (probe,) = manager.http.get("/api/ft/health?deep=1").json()["probes"]
    assert (probe["name"], probe["error"]) == ("tiny:latest", "")
    assert len(expires) == 1
    until(lambda: not manager.http.get("/api/ps").json()["models"], 3)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (FakeScript(hang_after=0), "no token within 0.2 s"),
        (FakeScript(die_at="prefill"), "SIGKILL"),
        (FakeScript(lie="no_finish"), "broke its protocol"),
        (FakeScript(refuse="not today"), "not today"),
    ],
    ids=["hangs", "dies", "lies", "refuses"],
)
def test_the_deep_probe_finds_what_a_plain_one_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: FakeScript, text: str
) -> None:
    monkeypatch.setattr(life_module, "PROBE_LIMIT_S", 0.2 if script.hang_after == 0 else 10.0)
    with managing(tmp_path, script) as manager:
        manager.http.post("/api/generate", json={"model": "tiny"})  # only loads it
        assert manager.http.get("/api/ft/health").json()["status"] == "ok"
        reply = manager.http.get("/api/ft/health?deep=1")
        assert reply.status_code == 503
        assert reply.headers["retry-after"]
        assert text in reply.json()["reason"], reply.text


def test_a_stuck_engine_is_503_until_it_is_replaced(tmp_path: Path) -> None:
    scripts = [FakeScript(hang_after=2), FakeScript(tokens=ids_of("ok"))]
    with managing(tmp_path, scripts) as manager:
        quick = Timings(poll_s=0.02, wedge_s=1.0)

        async def hurry() -> None:
            host = manager.service._supervisor._host
            object.__setattr__(host, "timings", quick)
            manager.service._supervisor._timings = quick

        manager.on_loop(hurry)
        seen: list[Any] = []
        thread = threading.Thread(
            target=lambda: seen.append(manager.http.post("/api/chat", json=SHORT | {"options": {}}))
        )
        thread.start()
        until(lambda: manager.http.get("/health").status_code == 503, 5)
        told = manager.http.get("/health")
        if told.status_code == 503:  # it may have been replaced in between
            assert told.json()["status"] == "stalled"
            assert "tiny:latest made no progress" in told.json()["reason"]
        thread.join(10)
        assert "made no step" in seen[0].json()["error"]
        assert manager.http.post("/api/chat", json=SHORT).status_code == 200
        assert manager.http.get("/health").json() == {"status": "ok"}


def test_a_scheduler_that_stands_still_is_503(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life_module, "SCHEDULER_LIMIT_S", 0.05)

    async def stop() -> None:
        ticker = manager.service._supervisor._ticker
        assert ticker is not None
        ticker.cancel()
        await asyncio.sleep(0)

    manager.on_loop(stop)
    reply = manager.http.get("/health")
    assert reply.status_code == 503
    assert "the scheduler did not turn" in reply.json()["reason"]


def test_a_background_request_gives_way_and_says_so(tmp_path: Path) -> None:
    config = make_config(tmp_path, engine=ONE_PLACE)
    slow = FakeScript(tokens=ids_of("Hello"), token_s=0.1)
    with managing(tmp_path, slow, config=config) as manager:
        order: list[str] = []

        def ask(kind: str, priority: str) -> threading.Thread:
            def work() -> None:
                headers = {"x-ft-priority": priority, "x-request-id": kind}
                reply = manager.http.post("/api/chat", json=CHAT, headers=headers)
                assert reply.status_code == 200
                order.append(kind)

            thread = threading.Thread(target=work)
            thread.start()
            return thread

        threads = [ask("first", "normal")]
        until(lambda: manager.engine_runs() == 1, 5)
        threads.append(ask("patient", "background"))
        until(lambda: manager.leases_asked_for() == 2, 5)
        threads.append(ask("second", ""))
        until(lambda: manager.engine_runs() == 2, 5)
        queue = {q["request_id"]: q for q in manager.http.get("/api/ft/queue").json()["queue"]}
        assert "gives way" in queue["patient"]["reason"]
        for thread in threads:
            thread.join(10)
        assert order == ["first", "second", "patient"]


def test_a_priority_that_means_nothing_is_refused_in_every_dialect(manager: Manager) -> None:
    for path in ("/api/chat", "/v1/chat/completions", "/v1/messages"):
        reply = manager.http.post(path, json=CHAT, headers={"x-ft-priority": "urgent"})
        assert reply.status_code == 400
        assert "'urgent' is no priority" in reply.text
