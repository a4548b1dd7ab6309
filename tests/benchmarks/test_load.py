"""Loads in processes of their own: our worker twice, one in the peer's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load import load_once, our_worker, ratios_of
from benchmarks.side_by_side import Asked, converted
from tests.fakes.tiny_models import build_tiny_gguf


@pytest.mark.slow
def test_a_load_tells_its_seconds_and_its_memory(tmp_path: Path) -> None:
    gguf = tmp_path / "tiny.gguf"
    build_tiny_gguf("llama", gguf)
    asked = Asked((gguf,), rounds=1, threads=1, compute="bfloat16")
    with converted(gguf, None) as ftw:
        found = load_once(our_worker, asked, load=str(ftw))
    assert 0 < found["load_s"] < found["start_s"]
    assert found["all"] >= found["own"] > 0


def test_ratios_are_theirs_over_ours_in_time_and_ours_over_theirs_in_memory() -> None:
    def samples(load_s: float, size: float) -> list[dict[str, float]]:
        return [{"load_s": load_s, "all": size}] * 3

    found = ratios_of(
        "m", {"peer": samples(2.0, 300), "ours": samples(0.5, 150), "unhashed": samples(0.4, 150)}
    )
    assert found == pytest.approx({"load_m": 4.0, "memory_m": 0.5, "hashing_m": 1.25})
