"""An engine process that ends parks its conversations, and the next one goes on from there."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from ftengine.protocol import EngineInfo, FinishEvent, TokenEvent, decode
from tests.ftengine.server.engine_process import RunningEngine, Starter, generate

BIASED = {"logit_bias": [[0, -100.0], [1, -100.0], [2, -100.0]]}


async def say(engine: RunningEngine, ids: list[int]) -> tuple[list[int], int]:
    """The reply, and how many tokens of the prompt had to be computed."""
    body: dict[str, Any] = {"request_id": "r", "token_ids": ids, "max_tokens": 6}
    tokens: list[int] = []
    last: Any = None
    async with engine.client() as client:
        async for last in generate(client, {**body, "sampling": BIASED}):
            if isinstance(last, TokenEvent):
                tokens += last.token_ids
    assert isinstance(last, FinishEvent)
    return tokens, last.prompt_tokens - last.cached_tokens


async def parked_bytes(engine: RunningEngine) -> int:
    async with engine.client() as client:
        info = decode(EngineInfo, (await client.get("/info")).content)
    assert info.cache is not None
    return info.cache.parked_file_bytes


def end(engine: RunningEngine) -> int:
    engine.process.send_signal(signal.SIGTERM)
    return engine.process.wait(15)


def test_conversations_outlive_their_engine_even_one_that_is_killed_as_it_writes(
    start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--context", "256", "--orphan-s", "60", "--park-dir", str(tmp_path / "parked"))
    first, second = [3 + i * 13 % 290 for i in range(150)], [5 + i * 7 % 280 for i in range(90)]

    async def turns(engine: RunningEngine, *texts: list[int]) -> list[int]:
        await engine.ready()
        computed = []
        for text in texts:
            tokens, count = await say(engine, text)
            text += [*tokens, 7]
            computed.append(count)
        return computed

    engine = start(*options)
    assert asyncio.run(turns(engine, first)) == [150]
    assert end(engine) == 0
    assert list((tmp_path / "parked").glob("*.park"))
    monkeypatch.setenv("FT_FAULTS", "files.rename:1=kill")
    engine = start(*options)
    assert asyncio.run(turns(engine, first, second)) == [2, 90]
    assert end(engine) == -signal.SIGKILL
    monkeypatch.delenv("FT_FAULTS")
    engine = start(*options)
    assert asyncio.run(turns(engine, first, second)) == [2 + 7, 97]
    assert asyncio.run(parked_bytes(engine)) > 0
    assert not list((tmp_path / "parked").glob("*.tmp"))
    assert end(engine) == 0
