"""Log probabilities and seeds: the same numbers and tokens however a request is computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ftengine.protocol import (
    Constraint,
    EmbedReply,
    EmbedRequest,
    ErrorEvent,
    GenerateRequest,
    Sampling,
    TokenLogprob,
)
from ftengine.runtime.engine import Engine
from ftengine.runtime.outcomes import Result
from tests.ftengine.parity.tiny_engines import load_engine, make_tiny, random_ids

NO_SPECIALS = ((0, -100.0), (1, -100.0), (2, -100.0))


def asked(name: str, count: int, seed: int, max_tokens: int = 30) -> GenerateRequest:
    sampling = Sampling(temperature=1.1, top_p=0.95, seed=seed, logit_bias=NO_SPECIALS)
    return GenerateRequest(
        name,
        random_ids(count, seed=seed),
        sampling,
        max_tokens=max_tokens,
        logprobs=seed % 4,
        prompt_logprobs=True,
    )


REQUESTS = [asked(f"r{seed}", count, seed) for seed, count in enumerate((40, 3, 17, 25, 31))]


def tight(ftw: Path) -> Engine:
    """Room for little more than one context, so that the young ones are preempted."""
    roomy = load_engine(ftw, context=80)
    page = roomy.runner.pool.total_bytes // roomy.metrics.kv_pages
    return load_engine(ftw, context=80, step_tokens=16, kv_bytes=7 * page)


def alone(engine: Engine) -> list[Result]:
    return [engine.generate_sync([request])[0] for request in REQUESTS]


def beside_an_embedding(engine: Engine) -> list[Result]:
    answers: list[EmbedReply | ErrorEvent] = []
    engine.embed(EmbedRequest("e", (random_ids(70, seed=5),) * 3), answers.append)
    results = engine.generate_sync(REQUESTS)
    assert isinstance(answers[0], EmbedReply)
    return results


def beside_a_constraint(engine: Engine) -> list[Result]:
    bound = GenerateRequest(
        "c", (5, 6), Sampling(temperature=1.0), 40, constraint=Constraint("json")
    )
    engine.generate_sync([bound])  # compiled now, so that it starts with the others
    return engine.generate_sync([bound, *REQUESTS])[1:]


WAYS: dict[str, tuple[Callable[[Path], Engine], Callable[[Engine], list[Result]]]] = {
    "batch": (load_engine, lambda engine: engine.generate_sync(REQUESTS)),
    "small chunks": (lambda ftw: load_engine(ftw, step_tokens=5), alone),
    "chunked batch": (
        lambda ftw: load_engine(ftw, step_tokens=16),
        lambda engine: engine.generate_sync(REQUESTS[::-1])[::-1],
    ),
    "preempted": (tight, lambda engine: engine.generate_sync(REQUESTS)),
    "beside an embedding": (load_engine, beside_an_embedding),
    "beside a constraint": (load_engine, beside_a_constraint),
}


@pytest.fixture(scope="module", params=["llama", "qwen3_moe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense and a MoE model."""
    return make_tiny(request.param, tmp_path_factory.mktemp(request.param))[1]


@pytest.fixture(scope="module")
def truth(model: Path) -> list[Result]:
    """Every request by itself, in one piece."""
    return alone(load_engine(model))


def test_reported_numbers_are_a_log_softmax_of_the_reference_forward(
    model: Path, truth: list[Result]
) -> None:
    reference = load_engine(model, kernels="reference")
    for request, result in zip(REQUESTS, truth, strict=True):
        tokens = (*request.token_ids, *result.token_ids)
        chances = torch.log_softmax(reference.runner.logits(tokens), dim=-1)
        assert result.finish is not None
        reported = (*result.finish.prompt_logprobs, *result.logprobs)
        assert reported[0] is None
        for index, item in enumerate(reported[1:], start=1):
            assert isinstance(item, TokenLogprob)
            assert item.token_id == tokens[index]
            row = chances[index - 1]
            assert item.logprob == pytest.approx(float(row[item.token_id]), abs=1e-5)
            assert len(item.top) == (request.logprobs or 0)
            for token, logprob in item.top:
                assert logprob == pytest.approx(float(row[token]), abs=1e-5)
            best = row.topk(len(item.top)).values.tolist()
            assert [logprob for _, logprob in item.top] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_tokens_and_numbers_do_not_depend_on_the_way(
    model: Path, truth: list[Result], way: str
) -> None:
    make, generate = WAYS[way]
    engine = make(model)
    results = generate(engine)
    if way == "preempted":
        assert engine.scheduler.num_preemptions > 0
    for found, expected in zip(results, truth, strict=True):
        assert found.token_ids == expected.token_ids
        assert found.logprobs == expected.logprobs
        assert found.finish is not None
        assert expected.finish is not None
        assert found.finish.prompt_logprobs == expected.finish.prompt_logprobs
