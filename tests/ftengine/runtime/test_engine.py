"""The engine loop in this process: results, refusals, failures, threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ftengine.config import EngineConfig, MemoryConfig
from ftengine.errors import CapacityError, EngineError, FormatError, LoadError
from ftengine.protocol import (
    ErrorEvent,
    Event,
    FinishEvent,
    GenerateRequest,
    ProgressEvent,
    Sampling,
    TokenEvent,
)
from ftengine.runtime.assemble import MemoryPlan, check_memory
from ftengine.runtime.engine import Engine
from tests.ftengine.parity.tiny_engines import load_engine, random_ids

NO_SPECIALS = ((0, -100.0), (1, -100.0), (2, -100.0))
WARM = Sampling(temperature=1.2, top_k=50, top_p=0.95, logit_bias=NO_SPECIALS)


def request(name: str, count: int = 12, max_tokens: int = 10, **more: Any) -> GenerateRequest:
    sampling = more.pop("sampling", Sampling(logit_bias=NO_SPECIALS))
    return GenerateRequest(
        name, random_ids(count, seed=count), sampling, max_tokens=max_tokens, **more
    )


def test_seed_gives_the_same_tokens_in_any_company(engine: Engine) -> None:
    def seeded(name: str, seed: int | None) -> GenerateRequest:
        sampling = Sampling(temperature=1.2, seed=seed, logit_bias=NO_SPECIALS)
        return request(name, sampling=sampling, max_tokens=24)

    alone = engine.generate_sync([seeded("a", 7)])[0].token_ids
    crowd = engine.generate_sync([seeded("b", 8), seeded("c", 7), seeded("d", None)])
    assert crowd[1].token_ids == alone
    assert crowd[0].token_ids != alone
    assert crowd[2].token_ids != engine.generate_sync([seeded("e", None)])[0].token_ids


def test_logprobs_are_those_of_the_logits(engine: Engine) -> None:
    asked = request("a", logprobs=4, prompt_logprobs=True, sampling=WARM, max_tokens=6)
    result = engine.generate_sync([asked])[0]
    assert result.finish is not None
    tokens = (*asked.token_ids, *result.token_ids)
    truth = torch.log_softmax(engine.runner.logits(tokens).double(), dim=-1)
    prompt = result.finish.prompt_logprobs
    assert len(prompt) == len(asked.token_ids)
    assert prompt[0] is None
    reported = [*prompt[1:], *result.logprobs]
    for index, item in enumerate(reported, start=1):
        assert item is not None
        assert item.token_id == tokens[index]
        assert item.logprob == pytest.approx(float(truth[index - 1, tokens[index]]), abs=1e-5)
        assert [top[0] for top in item.top] == truth[index - 1].topk(4).indices.tolist()


@pytest.mark.parametrize("step_tokens", [5, 16, 512])
def test_prompt_logprobs_do_not_depend_on_chunks(ftw: Path, step_tokens: int) -> None:
    def run(tokens_per_step: int) -> FinishEvent | None:
        small = load_engine(ftw, step_tokens=tokens_per_step)
        asked = request("a", count=70, prompt_logprobs=True)
        return small.generate_sync([asked, request("b", count=9)])[0].finish

    first, second = run(step_tokens), run(300)
    assert first is not None
    assert second is not None
    assert first.prompt_logprobs == second.prompt_logprobs


def test_events_come_in_order(ftw: Path) -> None:
    engine = load_engine(ftw, step_tokens=16)
    events: list[Event] = []
    engine.submit(request("a", count=40, max_tokens=3), events.append)
    engine._receive(wait=False)
    while engine.step():
        pass
    kinds = [event.type for event in events]
    assert kinds == ["progress", "progress", "progress", "token", "token", "token", "finish"]
    assert [e.prefilled for e in events if isinstance(e, ProgressEvent)] == [0, 16, 32]
    finish = events[-1]
    assert isinstance(finish, FinishEvent)
    assert finish.prefill_s > 0
    assert finish.decode_s > 0
    assert finish.queue_s >= 0


def test_eos_ends_a_generation_and_is_not_sent(engine: Engine) -> None:
    forced = Sampling(logit_bias=((2, 1000.0),))
    result = engine.generate_sync([request("a", sampling=forced)])[0]
    assert result.token_ids == ()
    assert result.finish is not None
    assert (result.finish.reason, result.finish.stop_token_id) == ("stop", 2)


def test_failed_step_ends_its_requests_and_the_engine_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, code in (
        (RuntimeError("a kernel broke"), "engine_error"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (EngineError("bad", code="native_call"), "native_call"),
    ):

        def broken(*_: object, cause: Exception = error) -> None:
            raise cause

        with monkeypatch.context() as patch:
            patch.setattr(engine.runner, "run", broken)
            results = engine.generate_sync([request("a"), request("b")])
        assert [item.error.code for item in results if item.error] == [code, code]
        assert engine.metrics.kv_pages_free == engine.metrics.kv_pages
    assert engine.generate_sync([request("c")])[0].finish is not None
    assert engine.metrics.failed == 8


def test_not_a_number_is_an_error_and_not_a_token(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = torch.full((1, engine.info.vocab_size), float("nan"))
    monkeypatch.setattr(engine.runner, "run", lambda _: bad)
    for sampling in (Sampling(), WARM):
        result = engine.generate_sync([request("a", sampling=sampling)])[0]
        assert result.error is not None
        assert "not a number" in result.error.message


def test_refusals_are_events(engine: Engine) -> None:
    too_long, fine, twice = request("a", count=256), request("b"), request("b")
    results = engine.generate_sync([too_long, fine, twice])
    assert results[0].error is not None
    assert results[0].error.code == "context_length_exceeded"
    assert results[1].finish is not None
    assert results[2].error is not None
    assert results[2].error.code == "duplicate_request"
    engine.drain()
    refused = engine.generate_sync([request("c")])[0].error
    assert refused == ErrorEvent("draining", refused.message if refused else "", True)


def test_loop_serves_other_threads_and_aborts_within_a_step(engine: Engine) -> None:
    thread = threading.Thread(target=engine.run)
    thread.start()
    first: queue.Queue[Event] = queue.Queue()
    engine.submit(request("long", max_tokens=240), first.put)
    while not isinstance(first.get(timeout=60), TokenEvent):
        pass
    engine.abort("long")
    engine.abort("nobody")
    last = _last(lambda: first.get(timeout=60))
    assert isinstance(last, FinishEvent)
    assert last.reason == "abort"
    assert last.completion_tokens < 240
    second: queue.Queue[Event] = queue.Queue()
    engine.submit(request("stopped", max_tokens=240), second.put)
    second.get(timeout=60)
    engine.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert _last(lambda: second.get(timeout=60)).type == "finish"


def _last(get: Callable[[], Event]) -> FinishEvent | ErrorEvent:
    while True:
        event = get()
        if isinstance(event, FinishEvent | ErrorEvent):
            return event


def test_model_that_does_not_fit_is_refused_with_both_numbers() -> None:
    plan = MemoryPlan(4096, 256, 10_000_000_000, 2_000_000_000, 100_000_000)
    check_memory(plan, None)
    check_memory(plan, 13_000_000_000)
    with pytest.raises(CapacityError, match=r"needs 12\.37 GB.*8\.00 GB are free.*smaller"):
        check_memory(plan, 8_000_000_000)


def test_context_follows_the_model_and_the_memory(ftw: Path) -> None:
    assert load_engine(ftw, context=0).info.context_tokens == 512
    large = load_engine(ftw, context=4096)
    assert large.info.context_tokens == 512
    assert any("as trained" in note for note in large.info.notes)
    with pytest.raises(CapacityError, match="one page"):
        Engine(EngineConfig(ftw, memory=MemoryConfig(kv_bytes=1))).load()


def test_missing_native_library_falls_back_and_says_so(ftw: Path, tmp_path: Path) -> None:
    from ftengine.config import ComputeConfig

    missing = ComputeConfig(compute="float32", library=tmp_path / "libft_native.so")
    engine = Engine(EngineConfig(ftw, context_tokens=64, compute=missing))
    engine.load()
    assert engine.info.kernels["set"] == "reference"
    assert any("native kernels are missing" in note for note in engine.info.notes)
    assert engine.generate_sync([request("a", max_tokens=2)])[0].finish is not None


def test_damaged_models_are_refused_by_name(ftw: Path, tmp_path: Path) -> None:
    for name in ("index.json", "weights-00000.ftw", "config.json"):
        broken = tmp_path / name.replace(".", "_")
        broken.mkdir()
        for item in ftw.iterdir():
            if item.name != name:
                (broken / item.name).write_bytes(item.read_bytes())
        with pytest.raises((LoadError, FormatError), match=name) as caught:
            Engine(EngineConfig(broken)).load()
        assert isinstance(caught.value, EngineError)
