"""Memory divided anew under load: the same tokens, nothing leaked, refusals with numbers."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ftengine.device.emulated import EmulatedDevice
from ftengine.errors import CapacityError, EngineError, RequestError
from ftengine.protocol import (
    ErrorEvent,
    Event,
    GenerateRequest,
    MemoryRequest,
    MemoryState,
    Sampling,
    TokenEvent,
)
from ftengine.runtime.engine import Engine
from tests.ftengine.experts.conftest import EXPERTS, TOP_K, TOTAL
from tests.ftengine.experts.test_races import device_of, store_of
from tests.ftengine.parity.tiny_engines import greedy, random_ids

Engines = Callable[..., Engine]
PROMPTS = [random_ids(count, seed=count) for count in (5, 17, 33, 2, 40)]
SAMPLING = Sampling(
    logit_bias=((0, -100.0), (1, -100.0), (2, -100.0)), presence_penalty=50.0, repeat_last_n=-1
)


def one_page(engine: Engine) -> int:
    return engine.runner.pool.bytes_per_page


def rss_bytes() -> int:
    text = Path("/proc/self/status").read_text("ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found.group(1)) * 1024


def run_with_resizes(engine: Engine, resizes: int, seed: int) -> list[tuple[int, ...]]:
    """Five requests at a time, one resize after each step, until `resizes` were done."""
    draw = random.Random(seed)
    page, least = one_page(engine), 8  # pages of one context of 128 tokens
    done, rounds, answers = 0, 0, []
    while done < resizes:
        events: list[list[Event]] = [[] for _ in PROMPTS]
        for prompt, into in zip(PROMPTS, events, strict=True):
            name = f"r{rounds}.{len(prompt)}"
            engine.submit(GenerateRequest(name, prompt, SAMPLING, max_tokens=40), into.append)
        engine._receive(wait=False)
        while engine.scheduler.has_work:
            engine.step()
            if done < resizes:
                done += 1
                if draw.random() < 0.6:
                    slots = draw.choice([TOP_K, 7, 23, 2 * EXPERTS, TOTAL, draw.randint(2, TOTAL)])
                    request = MemoryRequest(expert_slots=slots)
                else:
                    request = MemoryRequest(
                        kv_bytes=page * draw.choice([least, draw.randint(least, 5 * least)])
                    )
                state = engine.resize_sync(request)
                check_state(engine, request, state)
        answers.append(
            [
                tuple(t for e in item if isinstance(e, TokenEvent) for t in e.token_ids)
                for item in events
            ]
        )
        rounds += 1
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def check_state(engine: Engine, request: MemoryRequest, state: MemoryState) -> None:
    if request.expert_slots is not None:
        assert state.expert_slots == request.expert_slots
    else:
        assert state.kv_bytes == request.kv_bytes
    store = store_of(engine)
    residency = store._residency
    assert residency is not None
    residency.check()
    engine.scheduler.check_integrity()
    assert engine.info.kv_bytes == state.kv_bytes
    stats = engine.info.experts
    assert stats is not None
    assert (stats.slots, stats.slot_bytes) == (state.expert_slots, state.slot_bytes)


def accounted(engine: Engine, state: MemoryState) -> int:
    """Bytes of the device that are neither slots nor KV nor free: must never change."""
    used = state.expert_slots * state.slot_bytes + state.kv_bytes
    return state.device_bytes - state.device_free_bytes - used


def check_resizes(engines: Engines, resizes: int, strategy: str) -> None:
    want = [item.token_ids for item in greedy(engines(), PROMPTS, 40)]
    engine = engines(device="emulated", strategy=strategy, expert_slots=23, context=128)
    memory = engine._loaded.memory
    fixed = accounted(engine, memory.state())
    threads = threading.active_count()
    assert run_with_resizes(engine, 20, seed=1) == want
    before = rss_bytes()
    assert run_with_resizes(engine, resizes, seed=2) == want
    assert rss_bytes() - before < 8 << 20
    assert accounted(engine, memory.state()) == fixed
    assert threading.active_count() <= threads + 2  # the copies' and the CPU branch's
    assert engine.metrics.preemptions > 0


def test_random_resizes_under_load_change_no_token(engines: Engines) -> None:
    check_resizes(engines, 20, "split")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fetch", "split", "auto"])
def test_hundred_random_resizes_change_no_token_and_take_no_memory(
    strategy: str, engines: Engines
) -> None:
    check_resizes(engines, 100, strategy)


def test_survivors_of_a_resize_are_not_fetched_again(engines: Engines) -> None:
    engine = engines(device="emulated", strategy="fetch", expert_slots=TOTAL)
    greedy(engine, PROMPTS, 40)
    store = store_of(engine)
    resident = store.num_resident
    assert resident > 40
    for slots in (40, TOTAL, 33):
        engine.resize_sync(MemoryRequest(expert_slots=slots))
        assert store.num_resident == min(resident, slots)
        resident = store.num_resident
    before = store.counters.total().hits
    greedy(engine, PROMPTS[:1], 8)
    assert store.counters.total().hits > before


def test_pool_that_does_not_fit_beside_the_old_one_starts_empty(engines: Engines) -> None:
    engine = engines(device="emulated", strategy="fetch", expert_slots=40)
    want = [item.token_ids for item in greedy(engine, PROMPTS, 12)]
    device, store = device_of(engine), store_of(engine)
    device.reserve(device.free_bytes - 10 * store.slot_bytes)
    engine.resize_sync(MemoryRequest(expert_slots=45))
    assert (store.num_slots, store.num_resident) == (45, 0)
    assert [item.token_ids for item in greedy(engine, PROMPTS, 12)] == want


def test_refused_allocation_keeps_the_old_size(engines: Engines) -> None:
    engine = engines(device="emulated", strategy="fetch", expert_slots=40)
    want = [item.token_ids for item in greedy(engine, PROMPTS, 12)]
    device_of(engine).fail_allocations(2)  # type: ignore[attr-defined]
    with pytest.raises(CapacityError, match="refused"):
        engine.resize_sync(MemoryRequest(expert_slots=60))
    assert store_of(engine).num_slots == 40
    assert [item.token_ids for item in greedy(engine, PROMPTS, 12)] == want


@pytest.mark.parametrize(
    ("asked", "strategy", "error", "text"),
    [
        (MemoryRequest(expert_slots=TOTAL + 1), "split", RequestError, "has 64 experts"),
        (MemoryRequest(expert_slots=1), "split", CapacityError, r"needs 2 expert slots .* have 1"),
        (MemoryRequest(expert_slots=9), "resident", CapacityError, "needs 64 expert slots"),
        (MemoryRequest(kv_bytes=1), "split", CapacityError, "which needs 16"),
        (MemoryRequest(kv_bytes=1 << 30), "split", CapacityError, r"\d+ bytes more .* \d+ of its"),
    ],
)
def test_impossible_division_is_refused_with_its_numbers(
    asked: MemoryRequest, strategy: str, error: type[EngineError], text: str, engines: Engines
) -> None:
    engine = engines(device="emulated", strategy=strategy)
    before = engine._loaded.memory.state()
    with pytest.raises(error, match=text):
        engine.resize_sync(asked)
    assert engine._loaded.memory.state() == before


def test_engine_without_slots_resizes_only_its_context(engines: Engines) -> None:
    engine = engines()
    with pytest.raises(RequestError, match="no expert slots"):
        engine.resize_sync(MemoryRequest(expert_slots=8))
    state = engine.resize_sync(MemoryRequest(kv_bytes=20 * one_page(engine)))
    assert (state.kv_pages, state.device_bytes) == (20, 0)
    answers: list[MemoryState | ErrorEvent] = []
    engine.resize(MemoryRequest(expert_slots=8), answers.append)
    engine.resize(MemoryRequest(kv_bytes=17 * one_page(engine)), answers.append)
    engine._receive(wait=False)
    assert isinstance(answers[0], ErrorEvent)
    assert isinstance(answers[1], MemoryState)
    assert answers[1].kv_pages == 17


def test_context_comes_before_experts(engines: Engines) -> None:
    roomy = engines(device="emulated", strategy="split").info
    assert roomy.experts is not None
    assert roomy.experts.slots == TOTAL
    fixed = accounted(engines(device="emulated", strategy="split"), _state(engines))
    tight = int((fixed + roomy.kv_bytes + 10 * roomy.experts.slot_bytes) / 0.95) + 100
    info = engines(device="emulated", strategy="split", device_bytes=tight).info
    assert info.experts is not None
    assert (info.experts.slots, info.kv_bytes) == (10, roomy.kv_bytes)
    least = tight - int(9 * roomy.experts.slot_bytes / 0.95)
    with pytest.raises(CapacityError, match=r"needs 2 expert slots \(\d+ bytes\).*would have 1"):
        engines(device="emulated", strategy="split", device_bytes=least)


def _state(engines: Engines) -> MemoryState:
    state: MemoryState = engines(device="emulated", strategy="split")._loaded.memory.state()
    return state


def test_slots_follow_the_free_memory_of_the_device(engines: Engines) -> None:
    want = [item.token_ids for item in greedy(engines(), PROMPTS, 12)]
    engine = engines(device="emulated", strategy="split", device_bytes=1 << 24)
    store, device, memory = store_of(engine), device_of(engine), engine._loaded.memory
    assert isinstance(device, EmulatedDevice)
    assert store.num_slots == TOTAL
    assert not memory.follow()
    device.others_bytes = device.free_bytes + 9 * store.slot_bytes
    assert memory.follow()
    reserve = device.total_bytes * 0.05
    assert 0 < store.num_slots < TOTAL - 9
    assert reserve <= device.free_bytes < reserve + store.slot_bytes
    assert not memory.follow()
    fewer = store.num_slots
    device.others_bytes -= store.slot_bytes * 2  # not worth a rebuild
    assert not memory.follow()
    assert [item.token_ids for item in greedy(engine, PROMPTS, 12)] == want
    device.others_bytes = 0
    engine._followed_s = -1e9
    assert [item.token_ids for item in greedy(engine, PROMPTS, 12)] == want
    assert store.num_slots == TOTAL > fewer
    engine.resize_sync(MemoryRequest(expert_slots=20))
    assert not memory.follows
    assert not memory.follow()


def test_idle_engine_gives_memory_back_too(engines: Engines) -> None:
    engine = engines(device="emulated", strategy="fetch", device_bytes=1 << 24)
    store, device = store_of(engine), device_of(engine)
    assert isinstance(device, EmulatedDevice)
    thread = threading.Thread(target=engine.run)
    thread.start()
    device.others_bytes = device.free_bytes + 9 * store.slot_bytes
    for _ in range(200):
        if store.num_slots < TOTAL:
            break
        threading.Event().wait(0.02)
    engine.stop()
    thread.join(10)
    assert store.num_slots < TOTAL - 9
