"""Streams decoded together: our worker's steps on a tiny model, and the ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import side_by_side, streams
from benchmarks.common import WorkerProcess
from benchmarks.side_by_side import Asked, Pair
from benchmarks.worker_ours import Worker
from ftengine.config import ComputeConfig
from tests.fakes.tiny_models import build_tiny_gguf


class Scripted:
    """A worker that takes `step_s` for each step, whatever it is asked."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.asked: list[dict[str, Any]] = []

    def ask(self, **request: Any) -> dict[str, Any]:
        self.asked.append(request)
        if "probe" in request:
            return {"bytes_per_s": 5e10, "hand_over_ns": 40.0}
        return {"seconds": self.step_s * len(request.get("together", [[]])[0])}


def test_the_faster_setting_of_the_peer_counts() -> None:
    ours, plain, packed = Scripted(0.01), Scripted(0.03), Scripted(0.02)
    peers = cast("dict[str, WorkerProcess]", {"peer": packed, "peer_plain": plain})
    asked = Asked((), rounds=2, threads=2, compute="bfloat16")
    pair = Pair(cast(WorkerProcess, ours), peers, asked, 300, 1)
    samples, placements = streams.measure(pair, 4)
    assert side_by_side.best_ratio(samples) == pytest.approx(2.0)
    assert placements == {"near": 2}
    for worker in (ours, plain, packed):
        sent = [item["together"] for item in worker.asked if "together" in item]
        assert [(len(ids), len(ids[0])) for ids in sent] == [(4, streams.TOKENS)] * 3
    assert ours.asked[0] == plain.asked[0]


def test_streams_compute_what_each_would_alone(tmp_path: Path) -> None:
    """The steps are real: the last logits of a stream are those of its text."""
    gguf = tmp_path / "tiny.gguf"
    build_tiny_gguf("qwen3moe", gguf)
    with side_by_side.converted(gguf, tmp_path / "kept") as ftw:
        worker = Worker(str(ftw), 64, 3, ComputeConfig(threads=1, compute="float32"))
    prompts, more = [[5, 6, 7], [8, 9], [10, 11, 12, 13]], [[20, 21], [22, 23], [24, 25]]
    worker.open_streams(prompts, 2)
    seen = []
    run = worker.engine.runner.run
    worker.engine.runner.run = lambda batch: seen.append(run(batch).clone())  # type: ignore[assignment,func-returns-value]
    assert worker.together(more) > 0
    worker.engine.runner.run = run  # type: ignore[method-assign]
    for number, (prompt, ids) in enumerate(zip(prompts, more, strict=True)):
        alone = worker.engine.runner.logits([*prompt, *ids])[-1]
        assert (seen[-1][number] - alone).abs().max() < 1e-4


def test_a_kept_model_is_converted_once(tmp_path: Path) -> None:
    gguf = tmp_path / "tiny.gguf"
    build_tiny_gguf("llama", gguf)
    with side_by_side.converted(gguf, tmp_path / "kept") as first:
        made = first.stat().st_ino
    gguf.unlink()
    with side_by_side.converted(gguf, tmp_path / "kept") as again:
        assert (again, again.stat().st_ino) == (first, made)
