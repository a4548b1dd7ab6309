"""Embeddings: equal to the reference model's hidden states, whatever runs beside them."""

from __future__ import annotations

import base64
import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ftengine.protocol import (
    EmbedReply,
    EmbedRequest,
    ErrorEvent,
    Event,
    FinishEvent,
    GenerateRequest,
    Sampling,
    TokenEvent,
)
from ftengine.runtime.embedding import Pool
from ftengine.runtime.engine import Engine
from tests.ftengine.parity.tiny_engines import load_engine, make_tiny, random_ids

Floats = npt.NDArray[np.float32]
INPUTS = tuple(random_ids(count, seed=count) for count in (1, 5, 16, 17, 70, 33))


def vectors(reply: EmbedReply | ErrorEvent) -> Floats:
    assert isinstance(reply, EmbedReply), reply
    rows = [np.frombuffer(base64.b64decode(text), "<f4") for text in reply.vectors]
    assert all(row.shape == (reply.dimensions,) for row in rows)
    return np.stack(rows)


def embedded(engine: Engine, inputs: Any = INPUTS, **more: Any) -> Floats:
    return vectors(engine.embed_sync(EmbedRequest("e", tuple(inputs), **more)))


@functools.cache
def _reference(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoModel.from_pretrained(
        folder, dtype=torch.float64, experts_implementation="eager"
    ).eval()


def reference(folder: Path, ids: tuple[int, ...], pooling: str) -> npt.NDArray[np.float64]:
    """transformers' hidden states after the last norm, pooled in float64."""
    with torch.inference_mode():
        states = _reference(folder)(torch.tensor([ids])).last_hidden_state[0].numpy()
    pooled = {"mean": states.mean(0), "last": states[-1], "cls": states[0]}[pooling]
    return np.asarray(pooled, np.float64)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    return {
        family: make_tiny(family, tmp_path_factory.mktemp(family))
        for family in ("llama", "qwen3_moe")
    }


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_vectors_are_those_of_the_reference_model(
    checkpoints: dict[str, tuple[Path, Path]], family: str, pooling: str
) -> None:
    source, ftw = checkpoints[family]
    engine = load_engine(ftw)
    found = embedded(engine, pooling=pooling, normalize=False)
    unit = embedded(engine, pooling=pooling)
    cut = embedded(engine, pooling=pooling, dimensions=24)
    for row, ids in enumerate(INPUTS):
        truth = reference(source, ids, pooling)
        assert np.abs(found[row] - truth).max() < 1e-4
        assert np.abs(unit[row] - truth / np.linalg.norm(truth)).max() < 1e-5
        assert np.abs(cut[row] - truth[:24] / np.linalg.norm(truth[:24])).max() < 1e-5
    assert np.abs(np.linalg.norm(unit.astype(np.float64), axis=1) - 1).max() < 1e-6


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_a_batch_of_unequal_lengths_equals_single_inputs_to_the_bit(
    ftw: Path, pooling: str
) -> None:
    engine = load_engine(ftw)
    together = embedded(engine, pooling=pooling)
    alone = np.concatenate([embedded(engine, (ids,), pooling=pooling) for ids in INPUTS])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("step_tokens", [7, 16])
def test_chunks_change_no_bit(ftw: Path, step_tokens: int) -> None:
    whole, chunked = load_engine(ftw), load_engine(ftw, step_tokens=step_tokens)
    assert np.array_equal(embedded(whole), embedded(chunked))


def test_dimensions_beyond_the_model_change_nothing(engine: Engine) -> None:
    assert np.array_equal(embedded(engine, dimensions=10_000), embedded(engine))


def test_many_inputs_enter_a_few_at_a_time_and_keep_their_order(ftw: Path) -> None:
    engine = load_engine(ftw, parallel=2)
    inputs = tuple(random_ids(1 + index % 7, seed=index) for index in range(40))
    many: list[EmbedReply | ErrorEvent] = []
    engine.embed(EmbedRequest("many", inputs), many.append)
    engine._receive(wait=False)
    assert engine.scheduler.num_waiting + engine.scheduler.num_running == 2
    while not many:
        engine.step()
        assert engine.scheduler.num_waiting + engine.scheduler.num_running <= 2
    engine.scheduler.check_integrity()
    found = vectors(many[0])
    for index in (0, 17, 39):
        assert np.array_equal(found[index : index + 1], embedded(engine, (inputs[index],)))
    reply = many[0]
    assert isinstance(reply, EmbedReply)
    assert reply.prompt_tokens == sum(map(len, inputs))
    assert engine.metrics.kv_pages_free == engine.metrics.kv_pages


def test_generation_goes_on_while_inputs_are_embedded(ftw: Path) -> None:
    engine = load_engine(ftw, parallel=2, step_tokens=16)
    bias = tuple((token, -100.0) for token in range(3))
    asked = GenerateRequest("g", random_ids(4), Sampling(logit_bias=bias), max_tokens=40)
    alone = engine.generate_sync([asked])[0].token_ids
    events: list[Event] = []
    answers: list[EmbedReply | ErrorEvent] = []
    engine.submit(asked, events.append)
    engine._receive(wait=False)
    engine.step()
    engine.embed(EmbedRequest("e", (random_ids(200),) * 3), answers.append)
    engine._receive(wait=False)
    for _ in range(10):
        before = sum(isinstance(event, TokenEvent) for event in events)
        engine.step()
        assert sum(isinstance(event, TokenEvent) for event in events) == before + 1
    while engine.step():
        pass
    ids = tuple(i for event in events if isinstance(event, TokenEvent) for i in event.token_ids)
    assert ids == alone
    assert len(set(answers[0].vectors if isinstance(answers[0], EmbedReply) else ())) == 1


def test_preempted_input_is_computed_again_to_the_same_bits(ftw: Path) -> None:
    roomy = embedded(load_engine(ftw), (random_ids(70),))
    any_size = load_engine(ftw, context=80)
    one_page = any_size.runner.pool.total_bytes // any_size.metrics.kv_pages
    tight = load_engine(ftw, context=80, step_tokens=4, kv_bytes=6 * one_page)
    bias = tuple((token, -100.0) for token in range(3))
    older = GenerateRequest("g", random_ids(4), Sampling(logit_bias=bias), max_tokens=60)
    tight.submit(older, lambda event: None)
    answers: list[EmbedReply | ErrorEvent] = []
    tight.embed(EmbedRequest("e", (random_ids(70),)), answers.append)
    tight._receive(wait=False)
    while tight.step():
        tight.scheduler.check_integrity()
    assert tight.scheduler.num_preemptions > 0
    assert np.array_equal(roomy, vectors(answers[0]))


def test_input_may_fill_the_context_and_not_be_longer(ftw: Path) -> None:
    engine = load_engine(ftw, context=64)
    assert embedded(engine, (random_ids(64),)).shape[0] == 1
    refused = engine.embed_sync(EmbedRequest("e", (random_ids(3), random_ids(65))))
    assert isinstance(refused, ErrorEvent)
    assert refused.code == "context_length_exceeded"
    assert "65 tokens" in refused.message
    assert "holds 64" in refused.message


def test_ids_of_no_token_and_answers_too_long_are_refused(engine: Engine) -> None:
    refused = engine.embed_sync(EmbedRequest("e", ((5, 10_000),)))
    assert isinstance(refused, ErrorEvent)
    assert "10000" in refused.message
    refused = engine.embed_sync(EmbedRequest("e", ((5,),) * 60_000))
    assert isinstance(refused, ErrorEvent)
    assert refused.code == "too_large"
    assert "8000000" in refused.message


def test_aborted_request_leaves_nothing(ftw: Path) -> None:
    engine = load_engine(ftw, step_tokens=16)
    answers: list[EmbedReply | ErrorEvent] = []
    engine.embed(EmbedRequest("e", INPUTS), answers.append)
    engine._receive(wait=False)
    engine.step()
    engine.abort("e")
    engine._receive(wait=False)
    assert not engine.step()
    assert [getattr(answer, "code", "") for answer in answers] == ["aborted"]
    assert engine.metrics.kv_pages_free == engine.metrics.kv_pages
    assert engine.metrics.aborted == 1
    embedded(engine)


def test_failed_step_answers_with_an_error_and_the_engine_goes_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a kernel broke")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run_with_rows", broken)
        refused = engine.embed_sync(EmbedRequest("e", INPUTS))
    assert isinstance(refused, ErrorEvent)
    assert refused.code == "engine_error"
    assert engine.metrics.kv_pages_free == engine.metrics.kv_pages
    embedded(engine)


def test_numbers_that_are_none_are_an_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(self: Pool, rows: torch.Tensor) -> None:
        self._kept, self._count = np.full(rows.shape[1], np.nan), 1

    with monkeypatch.context() as patch:
        patch.setattr(Pool, "add", poisoned)
        refused = engine.embed_sync(EmbedRequest("e", INPUTS))
    assert isinstance(refused, ErrorEvent)
    assert refused.code == "not_a_number"
    assert engine.metrics.kv_pages_free == engine.metrics.kv_pages


def test_draining_engine_refuses(engine: Engine) -> None:
    engine.drain()
    refused = engine.embed_sync(EmbedRequest("e", INPUTS))
    assert isinstance(refused, ErrorEvent)
    assert (refused.code, refused.retryable) == ("draining", True)


def test_stopping_answers_what_waits(engine: Engine) -> None:
    answers: list[Any] = []
    events: list[Event] = []
    engine.embed(EmbedRequest("e", INPUTS), answers.append)
    engine.submit(GenerateRequest("g", (5, 6)), events.append)
    engine.stop()
    engine._receive(wait=False)
    assert answers[0].code == "aborted"
    assert isinstance(events[-1], FinishEvent)
