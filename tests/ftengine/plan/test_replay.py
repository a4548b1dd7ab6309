"""Replayed steps against steps that Python drives: the same bits, whatever the family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftengine.plan import replay
from ftengine.plan.replay import StepPlans
from ftengine.protocol import GenerateRequest, Sampling
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_hybrids import HYBRIDS
from tests.ftengine.parity.tiny_engines import FAMILIES, load_engine, make_tiny, random_ids


def requests(count: int, seed: int) -> list[GenerateRequest]:
    return [
        GenerateRequest(
            f"r{i}", random_ids(9 + 5 * i, seed + i), max_tokens=12 + i, sampling=Sampling(seed=7)
        )
        for i in range(count)
    ]


def tokens_of(engine: Engine, count: int, seed: int = 0) -> list[tuple[int, ...]]:
    return [tuple(result.token_ids) for result in engine.generate_sync(requests(count, seed))]


def run_both(ftw: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Engine, Engine]:
    """Two engines of one model: one replays, one does not. Their tokens are equal."""
    planned, plain = load_engine(ftw), load_engine(ftw)
    got = [tokens_of(planned, count) for count in (3, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(StepPlans, "covers", lambda self, context: False)
        assert got == [tokens_of(plain, count) for count in (3, 1)]
    return planned, plain


@pytest.mark.parametrize("family", FAMILIES)
def test_covered_families_replay_every_piece(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, plain = run_both(make_tiny(family, tmp_path)[1], monkeypatch)
    assert planned.info.kernels["step"] == "native"
    assert plain.info.kernels["step"] == "recorded at the first token"
    assert planned.info.experts == plain.info.experts  # counted alike


@pytest.mark.parametrize(
    "family", ["gpt_oss", "lfm2_moe", *(pytest.param(f, marks=pytest.mark.slow) for f in HYBRIDS)]
)
def test_other_blocks_stay_in_python_and_are_named(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, _ = run_both(make_tiny(family, tmp_path)[1], monkeypatch)
    said = planned.info.kernels["step"]
    assert said.startswith("native but for ") or said == "native"
    if family in ("gpt_oss", "lfm2_moe"):
        assert "mixer" in said or "feed-forward" in said


def test_a_plan_is_one_native_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_engine(make_tiny("qwen3_moe", tmp_path)[1])
    tokens_of(engine, 1)
    calls: list[int] = []
    run = replay._Calls.run
    monkeypatch.setattr(replay._Calls, "run", lambda self: (calls.append(1), run(self))[1])
    steps = engine.metrics.steps
    tokens_of(engine, 1, seed=50)
    assert len(calls) == engine.metrics.steps - steps - 1  # the prompt is not a decode step


def test_another_pool_means_another_plan(tmp_path: Path) -> None:
    engine = load_engine(make_tiny("llama", tmp_path)[1])
    expected = tokens_of(engine, 1, seed=50)
    engine = load_engine(tmp_path / "ftw")
    tokens_of(engine, 1)
    old = engine.runner.pool
    engine.runner.use_pool(old.like(old.num_pages))
    old_bytes = [part.clone() for part in old.keys]
    assert engine.info.kernels["step"] == "recorded at the first token"
    assert tokens_of(engine, 1, seed=50) == expected
    assert all(torch.equal(a, b) for a, b in zip(old.keys, old_bytes, strict=True))


def test_reference_kernels_have_no_plan(tmp_path: Path) -> None:
    engine = load_engine(make_tiny("llama", tmp_path)[1], kernels="reference")
    tokens_of(engine, 1)
    assert engine.info.kernels["step"] == "python"
