"""A real engine process: generate, cancel, refuse, drain, die with its manager."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ftengine.protocol import (
    PROTOCOL_VERSION,
    EngineInfo,
    ErrorEvent,
    FinishEvent,
    Health,
    MemoryState,
    ProgressEvent,
    TokenEvent,
    decode,
)
from tests.ftengine.server.engine_process import ROOT, RunningEngine, Starter, generate

SLOW = ("--kernels", "reference")
"""Milliseconds per token, so that a test can act while a request runs."""
BIASED = {"logit_bias": [[0, -100.0], [1, -100.0], [2, -100.0]]}


def body(name: str, prompt: int = 20, max_tokens: int = 16, **more: Any) -> dict[str, Any]:
    ids = [3 + (prompt * 7 + i * 13) % 290 for i in range(prompt)]
    return {
        "request_id": name,
        "token_ids": ids,
        "max_tokens": max_tokens,
        "sampling": BIASED,
        **more,
    }


async def tokens_of(engine: RunningEngine, request: dict[str, Any]) -> tuple[list[int], Any]:
    tokens: list[int] = []
    last: Any = None
    async with engine.client() as client:
        async for event in generate(client, request):
            if isinstance(event, TokenEvent):
                tokens += event.token_ids
            last = event
    return tokens, last


async def until_idle(engine: RunningEngine) -> None:
    for _ in range(200):
        if await engine.metric("running") == 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the engine still runs something")


def test_hello_health_info_and_a_stream(start: Starter) -> None:
    async def scenario() -> None:
        engine = start("--context", "256", "--parallel", "2", "--compute", "float32")
        assert engine.hello.protocol == PROTOCOL_VERSION
        assert engine.hello.pid == engine.process.pid
        assert oct(Path(engine.hello.address.removeprefix("unix:")).stat().st_mode)[-3:] == "600"
        await engine.ready()
        assert engine.process.stdout is not None
        assert decode(Health, engine.process.stdout.readline()).state == "ready"
        async with engine.client() as client:
            info = decode(EngineInfo, (await client.get("/info")).content)
            assert (info.family, info.context_tokens, info.max_sequences) == ("qwen3_moe", 256, 2)
            assert info.num_experts == 4
            events = [event async for event in generate(client, body("a", logprobs=3))]
        assert isinstance(events[0], ProgressEvent)
        tokens = [event for event in events if isinstance(event, TokenEvent)]
        assert all(len(item.top) == 3 for event in tokens for item in event.logprobs)
        finish = events[-1]
        assert isinstance(finish, FinishEvent)
        assert (finish.reason, finish.prompt_tokens, finish.completion_tokens) == ("length", 20, 16)
        assert sum(len(event.token_ids) for event in tokens) == 16
        health = await engine.health()
        assert health.loaded_bytes == health.total_bytes > 0
        assert health.last_step_s is not None

    asyncio.run(scenario())


def test_eight_parallel_clients_get_what_they_get_alone(start: Starter) -> None:
    async def scenario() -> None:
        engine = start("--context", "256", "--parallel", "3")
        await engine.ready()
        requests = [body(f"r{i}", prompt=10 + 17 * i, max_tokens=20) for i in range(8)]
        together = await asyncio.gather(*(tokens_of(engine, item) for item in requests))
        for item, (tokens, finish) in zip(requests, together, strict=True):
            assert finish.reason == "length"
            assert (await tokens_of(engine, item))[0] == tokens
        assert await engine.metric("kv_pages_free") == await engine.metric("kv_pages")

    asyncio.run(scenario())


def test_leaving_client_aborts_and_frees_its_pages(start: Starter) -> None:
    async def scenario() -> None:
        engine = start("--context", "512", "--parallel", "1", *SLOW)
        await engine.ready()
        for stage in ("streaming", "waiting"):
            async with engine.client() as client, engine.client() as other:
                stream = generate(client, body("long", max_tokens=480))
                async for event in stream:
                    if isinstance(event, TokenEvent):
                        break
                assert await engine.metric("kv_pages_free") < await engine.metric("kv_pages")
                if stage == "waiting":
                    waiting = asyncio.create_task(tokens_of(engine, body("waits", max_tokens=400)))
                    await asyncio.sleep(0.05)
                    waiting.cancel()
                await other.get("/health")
                await stream.aclose()
            await until_idle(engine)
            assert await engine.metric("kv_pages_free") == await engine.metric("kv_pages")
            assert await engine.metric("waiting") == 0
        assert await engine.metric("aborted_total") >= 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"token_ids": []}, "bad_request", "token_ids"),
        ({"token_ids": ["a"]}, "bad_request", "token_ids"),
        ({"token_ids": [5, 99999]}, "bad_request", "99999"),
        ({"token_ids": list(range(3, 259))}, "context_length_exceeded", "256"),
        ({"max_tokens": -7}, "bad_request", "max_tokens"),
        ({"sampling": {"temperature": -1}}, "bad_request", "temperature"),
        ({"sampling": {"logit_bias": [[123456, 1.0]]}}, "bad_request", "123456"),
        ({"sampling": {"presence_penalty": float("inf")}}, "bad_request", "presence_penalty"),
        ({"sampling": {"logit_bias": [[5, float("nan")]]}}, "bad_request", "finite"),
        ({"logprobs": 21}, "bad_request", "logprobs"),
    ],
)
def test_bad_requests_get_one_clear_error(
    change: dict[str, Any], code: str, words: str, shared: RunningEngine
) -> None:
    async def scenario() -> None:
        await shared.ready()
        async with shared.client() as client:
            answer = await client.post("/generate", content=json.dumps({**body("bad"), **change}))
        assert answer.status_code == 400
        event = decode(ErrorEvent, answer.content)
        assert event.code == code
        assert words in event.message

    asyncio.run(scenario())


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100000])
def test_nonsense_bodies_are_refused(raw: bytes, shared: RunningEngine) -> None:
    async def scenario() -> None:
        await shared.ready()
        async with shared.client() as client:
            answer = await client.post("/generate", content=raw)
            assert answer.status_code == 400
            assert decode(ErrorEvent, answer.content).code == "bad_request"
            assert (await client.get("/nowhere")).status_code == 404
            assert (await client.get("/generate")).status_code == 405

    asyncio.run(scenario())


def test_body_above_the_limit_is_refused(shared: RunningEngine) -> None:
    async def scenario() -> None:
        await shared.ready()
        async with shared.client() as client:
            answer = await client.post("/generate", content=b"1" * 8_100_000)
        assert answer.status_code == 413
        assert decode(ErrorEvent, answer.content).code == "too_large"

    asyncio.run(scenario())


def test_full_queue_and_deadline(start: Starter) -> None:
    async def scenario() -> None:
        engine = start("--context", "512", "--parallel", "1", "--max-waiting", "1", *SLOW)
        await engine.ready()
        late = (await tokens_of(engine, body("late", max_tokens=480, deadline_s=0.02)))[1]
        assert isinstance(late, ErrorEvent)
        assert late.code == "deadline_exceeded"
        async with engine.client() as client, engine.client() as asking:
            running = generate(client, body("runs", max_tokens=100))
            await anext(running)
            waiting = asyncio.create_task(tokens_of(engine, body("waits", max_tokens=4)))
            while await engine.metric("waiting") == 0:
                assert not waiting.done()
            answer = await asking.post("/generate", content=json.dumps(body("third")))
            assert answer.status_code == 503
            assert decode(ErrorEvent, answer.content).code == "queue_full"
            assert [event async for event in running][-1].type == "finish"
            assert (await waiting)[1].reason == "length"

    asyncio.run(scenario())


def test_sigterm_finishes_running_work_refuses_new_and_exits_zero(start: Starter) -> None:
    async def scenario() -> None:
        engine = start("--context", "512", "--parallel", "1", *SLOW)
        await engine.ready()
        async with engine.client() as client, engine.client() as other:
            finish: Any = None
            signalled = False
            async for event in generate(client, body("a", max_tokens=60)):
                finish = event
                if isinstance(event, TokenEvent) and not signalled:
                    signalled = True
                    engine.process.send_signal(signal.SIGTERM)
                    refused = await other.post("/generate", content=json.dumps(body("b")))
                    assert refused.status_code == 503
                    assert decode(ErrorEvent, refused.content).code == "draining"
        assert isinstance(finish, FinishEvent)
        assert finish.completion_tokens == 60
        assert await asyncio.to_thread(engine.process.wait, 10) == 0
        assert not Path(engine.hello.address.removeprefix("unix:")).exists()

    asyncio.run(scenario())


def test_idle_engine_ends_when_its_manager_stops_asking(start: Starter) -> None:
    async def scenario() -> None:
        engine = start("--orphan-s", "0.5")
        await engine.ready()
        for _ in range(4):  # asked often enough, it stays
            await asyncio.sleep(0.04)
            await engine.health()
        assert engine.process.poll() is None
        assert await asyncio.to_thread(engine.process.wait, 10) == 0

    asyncio.run(scenario())


def test_engine_of_a_parent_that_died_before_asking_ends(start: Starter) -> None:
    script = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE);"
        "print(p.stdout.readline().decode(), flush=True)"
    )
    arguments = start.arguments("--orphan-s", "0.3")
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    pid = json.loads(done.stdout)["pid"]
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and _is_running(pid):
        time.sleep(0.05)
    assert not _is_running(pid)


def test_tcp_needs_its_token(start: Starter, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")

    async def scenario() -> None:
        engine = start("--token-file", str(secret), address="tcp:127.0.0.1:0", token="s3cret")
        await engine.ready()
        assert (await tokens_of(engine, body("a")))[1].reason == "length"
        engine.token = "wrong"
        async with engine.client() as client:
            assert (await client.get("/health")).status_code == 401

    asyncio.run(scenario())


def test_broken_model_says_why_on_health_and_exits_nonzero(start: Starter, tmp_path: Path) -> None:
    async def scenario() -> None:
        start.ftw = tmp_path / "nothing"
        engine = start()
        async with engine.client() as client:
            answer = await client.get("/health")
            while answer.json()["state"] == "loading":
                answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["state"] == "failed"
        assert "index.json" in answer.json()["error"]
        assert await asyncio.to_thread(engine.process.wait, 10) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "tpu"], "--device tpu"),
        (["--compute", "int3"], "--compute int3"),
        (["--context", "-5"], "--context -5"),
        (["--parallel", "0"], "--parallel 0"),
    ],
)
def test_bad_command_line_is_one_line(options: list[str], words: str, start: Starter) -> None:
    done = subprocess.run(
        start.arguments(*options), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_memory_is_divided_anew_while_a_request_runs(start: Starter) -> None:
    device = ("--device", "emulated", "--strategy", "split", "--expert-slots", "4")
    common = ("--context", "256", "--compute", "float32", "--parallel", "2")

    async def scenario() -> None:
        plain = start(*common)
        engine = start(*common, *device, "--device-bytes", str(1 << 27))
        await plain.ready()
        await engine.ready()
        want, _ = await tokens_of(plain, body("a", max_tokens=120))
        running = asyncio.create_task(tokens_of(engine, body("a", max_tokens=120)))
        async with engine.client() as client:
            for asked in ({"expert_slots": 8}, {"kv_bytes": 300_000}, {"expert_slots": 3}):
                answer = await client.post("/memory", content=json.dumps(asked))
                state = decode(MemoryState, answer.content)
                if "expert_slots" in asked:
                    assert state.expert_slots == asked["expert_slots"]
                else:
                    assert 0 < state.kv_bytes <= 300_000
            assert (await running)[0] == want
            for asked, text in (
                ({"expert_slots": 1000}, "has 8 experts"),
                ({"kv_bytes": 1}, "which needs 16"),
                ({"expert_slots": 1, "kv_bytes": 1}, "one at a time"),
                ({}, "one at a time"),
                ({"expert_slots": "many"}, "wrong type"),
            ):
                answer = await client.post("/memory", content=json.dumps(asked))
                assert answer.status_code == 400
                assert text in decode(ErrorEvent, answer.content).message
            info = decode(EngineInfo, (await client.get("/info")).content)
            assert info.experts is not None
            assert (info.experts.slots, info.experts.strategy) == (3, "split")
            assert any("emulated" in note for note in info.notes)
            text = (await client.get("/metrics")).text
        assert 'ft_engine_experts_fills_total{layer="0"} ' in text
        name = "ft_engine_experts_fills_total{"
        lines = [line for line in text.splitlines() if line.startswith(name)]
        assert sum(int(line.split()[1]) for line in lines) == info.experts.fills > 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--strategy", "split"), "--device cpu has no memory of its own"),
        (("--strategy", "fastest"), "one of resident, fetch, cpu, split, auto"),
        (("--expert-slots", "4"), "every expert is computed where it lies"),
        (("--device", "emulated", "--expert-slots", "4", "--expert-bytes", "4"), "left out"),
        (("--tier", "tape"), "one of auto, memory, disk"),
    ],
)
def test_setting_that_makes_no_sense_is_named(
    options: tuple[str, ...], text: str, start: Starter
) -> None:
    found = subprocess.run(
        start.arguments(*options), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert found.returncode != 0
    assert text in found.stderr
