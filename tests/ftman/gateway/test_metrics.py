"""/metrics, request ids from end to end, and the queue as others see it."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import httpx
import pytest

from ftman.config import EngineSettings
from ftman.gateway.metrics import merged
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Manager, ids_of, make_config, managing


def values(text: str) -> dict[str, float]:
    """Samples by name and labels; every family has its help and type once."""
    lines = text.splitlines()
    heads = [line for line in lines if line.startswith("# ")]
    assert len(heads) == len(set(heads))
    found = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    assert len({name for name, _ in found}) == len(found)
    return {name: float(value) for name, value in found}


def chat(manager: Manager, headers: dict[str, str] | None = None) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": False}
    return manager.http.post("/api/chat", json=body, headers=headers)


def test_requests_tokens_and_engines_are_counted(tmp_path: Path) -> None:
    with managing(tmp_path, FakeScript(tokens=ids_of("hello"))) as manager:
        assert chat(manager).status_code == 200
        assert manager.http.get("/api/nothing").status_code == 404
        assert manager.http.get("/api/nothing/else").status_code == 404
        found = values(manager.http.get("/metrics").text)
        manager.http.post("/api/generate", json={"model": "tiny", "keep_alive": 0})
        after = values(manager.http.get("/metrics").text)
    assert found['ft_requests_total{method="POST",route="/api/chat",status="200"}'] == 1
    assert found['ft_requests_total{method="",route="",status="404"}'] == 2
    assert found['ft_request_seconds_count{route="/api/chat"}'] == 1
    assert found['ft_request_seconds_bucket{route="/api/chat",le="+Inf"}'] == 1
    assert found["ft_requests_in_flight"] == 1
    assert found['ft_model_loads_total{model="tiny:latest"}'] == 1
    assert found['ft_completion_tokens_total{model="tiny:latest"}'] == 5
    assert found['ft_prompt_tokens_total{model="tiny:latest"}'] > 0
    assert found['ft_engine{model="tiny:latest",state="ready"}'] == 1
    assert found["ft_queue_length"] == 0
    assert found["process_resident_memory_bytes"] > 1e6
    engine = [name for name in found if name.startswith("ft_engine_") and 'model="tiny' in name]
    assert engine
    assert after['ft_model_unloads_total{model="tiny:latest",reason="idle"}'] == 1


def test_deaths_and_failed_loads_are_counted(tmp_path: Path) -> None:
    script = FakeScript(die_at="load", die="exit:3")
    with managing(tmp_path, script) as manager:
        assert chat(manager).status_code == 500
        found = values(manager.http.get("/metrics").text)
    assert found['ft_model_load_failures_total{model="tiny:latest"}'] == 1


def test_texts_of_several_engines_become_one() -> None:
    text = '# HELP a Some.\n# TYPE a counter\na 1\n# HELP b More.\n# TYPE b gauge\nb{layer="0"} 2\n'
    found = merged({"x:1": text, 'q"uote': text})
    assert found.count("# HELP a Some.") == 1
    assert values(found) == {
        'a{model="x:1"}': 1,
        'a{model="q\\"uote"}': 1,
        'b{model="x:1",layer="0"}': 2,
        'b{model="q\\"uote",layer="0"}': 2,
    }
    assert merged({}) == ""


def test_a_clients_id_goes_all_the_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "requests.log"
    script = FakeScript(tokens=ids_of("hi"), request_log=str(log))
    with managing(tmp_path / "home", script) as manager, caplog.at_level(logging.INFO):
        reply = chat(manager, {"X-Request-Id": "trace-42"})
        own = chat(manager)
        odd = chat(manager, {"X-Request-Id": "bad id\twith spaces"})
    assert reply.headers["x-request-id"] == "trace-42"
    assert own.headers["x-request-id"].startswith("req_")
    assert odd.headers["x-request-id"].startswith("req_")
    asked = [json.loads(line)["request"]["request_id"] for line in log.read_text().splitlines()]
    assert asked[0].startswith("trace-42")
    assert asked[1] == own.headers["x-request-id"]


def test_an_id_that_is_under_way_is_not_given_twice(tmp_path: Path) -> None:
    script = FakeScript(tokens=ids_of("hello"), token_s=0.04)
    with managing(tmp_path, script) as manager:
        ids: list[str] = []

        def ask() -> None:
            ids.append(chat(manager, {"X-Request-Id": "same"}).headers["x-request-id"])

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(ids)) == 2
    assert "same" in ids
    assert all(item.startswith("same") for item in ids)


def test_the_queue_tells_place_wait_and_reason(tmp_path: Path) -> None:
    engine = EngineSettings(num_parallel=1, threads=1, adopt=False)
    script = FakeScript(load_s=0.1, token_s=0.05)
    with managing(tmp_path, script, config=make_config(tmp_path, engine=engine)) as manager:
        body = {"model": "tiny", "prompt": "x", "options": {"num_predict": 30}}
        threads = [
            threading.Thread(
                target=manager.http.post,
                args=("/api/generate",),
                kwargs={"json": body, "headers": {"X-Request-Id": f"r{n}"}},
            )
            for n in range(3)
        ]
        for thread in threads:
            thread.start()
        reasons: set[str] = set()
        seen: list[dict[str, object]] = []
        while any(thread.is_alive() for thread in threads):
            seen = manager.http.get("/api/ft/queue").json()["queue"] or seen
            reasons |= {str(item["reason"]) for item in seen}
        assert manager.http.get("/api/ft/queue").json() == {"queue": []}
    assert "tiny:latest is being loaded" in reasons
    assert "all 1 places of tiny:latest are in use" in reasons
    assert {item["model"] for item in seen} == {"tiny:latest"}
    assert all(item["position"] and item["wait_s"] >= 0 for item in seen)  # type: ignore[operator]
    assert {str(item["request_id"]) for item in seen} <= {"r0", "r1", "r2"}
