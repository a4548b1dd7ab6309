"""F27: the store's disk goes away and comes back, or can only be read."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.faults import invariants
from tests.e2e.faults.manager_process import CHAT, Rig, ask, runs
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Tiny, ids_of

SCRIPT = FakeScript(tokens=ids_of("Hello world"), token_s=0.001)
OTHER = Tiny("other:latest", seed=1)
BOTH = {"tiny/latest", "other/latest"}


def chat(http: httpx.Client, model: str) -> httpx.Response:
    """One whole answer; the model stays loaded."""
    body = CHAT | {"model": model, "stream": False, "keep_alive": "10m"}
    return http.post("/api/chat", json=body)


def unload(http: httpx.Client, model: str) -> None:
    """End its engine."""
    assert http.post("/api/generate", json={"model": model, "keep_alive": 0}).is_success


@runs
def test_what_is_loaded_goes_on_and_the_rest_comes_back_with_the_disk(
    rig: Rig, num_points: int
) -> None:
    models = rig.home / "models"
    with rig.inside(SCRIPT, (Tiny(), OTHER)) as manager:
        url, http = manager.url, manager.http
        assert chat(http, "tiny").status_code == 200
        assert chat(http, "other").status_code == 200
        for number in range(num_points):
            unload(http, "other")
            away = rig.root / f"away-{number}"
            models.rename(away)
            if rig.rng.random() < 0.5:
                models.mkdir()  # where a disk is mounted, an empty folder stays
            for _ in range(rig.rng.randrange(1, 4)):
                answer = ask(url, CHAT)
                invariants.ended_once(answer)
                assert answer.complete, answer.lines
            refused = chat(http, "other")
            assert refused.status_code == 503, refused.text
            assert refused.json()["code"] == "store_unavailable"
            invariants.told_why(refused)
            listed = http.get("/api/tags").json()["models"]
            assert [m["ft"]["damaged"] for m in listed] == ["its store is not there"] * 2
            assert chat(http, "nobody").status_code == 404
            invariants.answers_when_healthy(url)
            with contextlib.suppress(FileNotFoundError):
                models.rmdir()
            away.rename(models)
            assert chat(http, "other").status_code == 200
            assert set(rig.check_store()) == BOTH


@contextlib.contextmanager
def only_readable(folder: Path) -> Iterator[None]:
    """Mount a folder over itself so that nobody, root included, may write."""
    commands = (
        ["mount", "--bind", str(folder), str(folder)],
        ["mount", "-o", "remount,bind,ro", str(folder)],
    )
    done = 0
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True)
            done += 1
    except (OSError, subprocess.CalledProcessError) as error:
        if done:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        pytest.skip(f"no folder can be made read-only for root here: {error}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@runs
def test_a_store_that_can_only_be_read_answers_and_refuses_changes(
    rig: Rig, num_points: int
) -> None:
    with rig.inside(SCRIPT, (Tiny(), OTHER)) as manager:
        with only_readable(rig.home / "models"):
            for _ in range(num_points):
                assert chat(manager.http, rig.rng.choice(("tiny", "other"))).status_code == 200
                refused_change(rig, manager.http)
            invariants.answers_when_healthy(manager.url)
        copied = {"source": "tiny", "destination": "copy"}
        assert manager.http.post("/api/copy", json=copied).is_success
    assert set(rig.check_store()) == BOTH | {"copy/latest"}


def refused_change(rig: Rig, http: httpx.Client) -> None:
    """One change, refused with its reason; nothing is half done."""
    method, path, body = rig.rng.choice(
        (
            ("POST", "/api/copy", {"source": "tiny", "destination": "copy"}),
            ("DELETE", "/api/delete", {"model": "other"}),
            ("POST", "/api/create", {"model": "new", "from": "tiny", "stream": False}),
            ("POST", "/api/create", {"model": "new", "from": "tiny", "system": "x"}),
        )
    )
    reply = http.request(method, path, json=body)
    if reply.status_code == 200:  # a stream tells it at its end
        assert "Read-only" in reply.text.splitlines()[-1], reply.text
    else:
        invariants.told_why(reply)
        assert "Read-only" in reply.json()["error"], reply.text
    assert set(rig.check_store()) == BOTH
