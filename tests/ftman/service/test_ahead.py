"""An engine is loaded while the prompt is made, where that takes nobody's place."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import cast
from unittest.mock import Mock

import pytest

from ftman.chat.tokenizer import Tokenizer
from ftman.chat.types import Waiting
from ftman.clock import SYSTEM
from ftman.service import generate
from ftman.service.engines import Engines as RealEngines
from tests.fakes.engine import FakeScript
from tests.ftman.gateway.serving import Manager, Tiny, ids_of, managing

SHORT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": False}
LONG = {"model": "tiny", "messages": [{"role": "user", "content": "hello " * 9000}]}
ANSWERS = FakeScript(tokens=ids_of("hello"))
LIMIT_S = 30.0


class SlowTokenizers:
    """Holds every load of a tokenizer until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        load = Tokenizer.load

        def wait_and_load(folder: Path) -> Tokenizer:
            self.begun.set()
            assert self.go_on.wait(LIMIT_S)
            return load(folder)

        monkeypatch.setattr(Tokenizer, "load", wait_and_load)


@pytest.fixture
def tokenizers(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowTokenizers]:
    slow = SlowTokenizers(monkeypatch)
    yield slow
    slow.go_on.set()


def in_background(manager: Manager, path: str, body: object) -> tuple[threading.Thread, list[int]]:
    """A request, and where its status will be."""
    statuses: list[int] = []
    thread = threading.Thread(
        target=lambda: statuses.append(manager.http.post(path, json=body).status_code)
    )
    thread.start()
    return thread, statuses


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something of the real world."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def num_engines(manager: Manager) -> int:
    """Engines that have a process."""

    async def count() -> int:
        return len(manager.service.running())

    return manager.on_loop(count)


def test_the_engine_is_ready_before_the_tokenizer_is(
    tmp_path: Path, tokenizers: SlowTokenizers
) -> None:
    with managing(tmp_path, ANSWERS) as manager:
        thread, statuses = in_background(manager, "/api/chat", SHORT)
        assert tokenizers.begun.wait(LIMIT_S)
        wait_until(lambda: manager.engine_runs() == 1)
        tokenizers.go_on.set()
        thread.join(LIMIT_S)
        assert statuses == [200]
        assert len(manager.launcher.launched) == 1
        wait_until(lambda: manager.leases_asked_for() == 0)


def test_the_engine_is_told_before_the_tokenizer_is_read(
    tmp_path: Path, tokenizers: SlowTokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "TELL_S", LIMIT_S)
    with managing(tmp_path, ANSWERS) as manager:
        thread, statuses = in_background(manager, "/api/chat", SHORT)
        assert tokenizers.begun.wait(LIMIT_S)
        assert len(manager.launcher.launched) == 1
        tokenizers.go_on.set()
        thread.join(LIMIT_S)
        assert statuses == [200]


def test_a_bad_prompt_gives_the_engine_back(tmp_path: Path, tokenizers: SlowTokenizers) -> None:
    with managing(tmp_path, ANSWERS) as manager:
        thread, statuses = in_background(manager, "/v1/chat/completions", LONG)
        assert tokenizers.begun.wait(LIMIT_S)
        wait_until(lambda: manager.engine_runs() == 1)
        tokenizers.go_on.set()
        thread.join(LIMIT_S)
        assert statuses == [400]
        wait_until(lambda: manager.leases_asked_for() == 0)
        assert manager.http.post("/api/chat", json=SHORT).status_code == 200


def test_a_bad_prompt_gives_the_load_up(tmp_path: Path, tokenizers: SlowTokenizers) -> None:
    with managing(tmp_path, FakeScript(load_s=LIMIT_S)) as manager:
        thread, statuses = in_background(manager, "/v1/chat/completions", LONG)
        assert tokenizers.begun.wait(LIMIT_S)
        wait_until(lambda: len(manager.launcher.launched) == 1)
        tokenizers.go_on.set()
        thread.join(LIMIT_S)
        assert statuses == [400]
        wait_until(lambda: num_engines(manager) == 0)


def test_nothing_is_loaded_beside_another_model(tmp_path: Path, tokenizers: SlowTokenizers) -> None:
    models = (Tiny(), Tiny("other:latest", seed=1))
    with managing(tmp_path, ANSWERS, models) as manager:
        tokenizers.go_on.set()
        assert manager.http.post("/api/chat", json=SHORT).status_code == 200
        tokenizers.begun.clear()
        tokenizers.go_on.clear()
        thread, statuses = in_background(manager, "/api/chat", SHORT | {"model": "other"})
        assert tokenizers.begun.wait(LIMIT_S)
        assert manager.leases_asked_for() == 0
        tokenizers.go_on.set()
        thread.join(LIMIT_S)
        assert statuses == [200]


def test_a_bad_option_loads_nothing(tmp_path: Path, tokenizers: SlowTokenizers) -> None:
    tokenizers.go_on.set()
    with managing(tmp_path, ANSWERS) as manager:
        body = SHORT | {"options": {"repeat_penalty": -1}}
        assert manager.http.post("/api/chat", json=body).status_code == 400
        assert manager.launcher.launched == []


def test_what_ended_the_load_is_told(tmp_path: Path) -> None:
    with managing(tmp_path, FakeScript(load_error="no router")) as manager:
        reply = manager.http.post("/api/chat", json=SHORT)
        assert reply.status_code == 500
        assert "no router" in reply.json()["error"]


def test_a_lease_is_given_up_before_what_was_taken_is_given_back() -> None:
    """Granted in between, it would be nobody's, and its engine never be let go."""
    order: list[str] = []

    class Engines:
        def spec(self, *_: object) -> None: ...

        async def lease(
            self, stack: contextlib.AsyncExitStack, *_: object
        ) -> AsyncGenerator[Waiting, None]:
            stack.callback(order.append, "given back")
            try:
                yield Waiting("load")
            finally:
                await asyncio.sleep(0)
                order.append("given up")

    async def main() -> None:
        engines = cast(RealEngines, Engines())
        generator = generate.Generator(engines, Mock(), Mock(), Mock(), SYSTEM)
        events = generator._one_lease(Mock(), Mock(), None)
        assert isinstance(await anext(events), Waiting)
        await events.aclose()

    asyncio.run(main())
    assert order == ["given up", "given back"]
