"""Equal tokens, whoever computes an expert and however small the cache; counters tell who did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ftengine.convert.local import convert_folder
from ftengine.experts.ways import CPU, STREAM, WayChooser
from ftengine.protocol import ExpertStats
from ftengine.runtime.engine import Engine
from tests.fakes.quantised import build_quantised
from tests.fakes.tiny_models import TinySizes, build_tiny_gguf
from tests.ftengine.experts.conftest import EXPERTS, TOP_K, TOTAL
from tests.ftengine.parity.tiny_engines import greedy, load_engine, random_ids

Engines = Callable[..., Engine]
Tokens = list[tuple[int, ...]]

STEPS = 64
PROMPTS = {
    1: [random_ids(23, seed=1)],
    5: [random_ids(count, seed=count) for count in (5, 17, 33, 2, 40)],
}
CACHES = {
    "one_token": TOP_K,
    "11_percent": TOTAL * 11 // 100,
    "37_percent": TOTAL * 37 // 100,
    "two_layers": 2 * EXPERTS,
}
CASES = [
    (strategy, slots) for strategy in ("fetch", "split", "auto") for slots in CACHES.values()
] + [("resident", TOTAL), ("cpu", 0)]
SHORT = [("fetch", CACHES["11_percent"]), ("split", CACHES["37_percent"]), ("resident", TOTAL)]


def run(engine: Engine, batch: int) -> Tokens:
    return [item.token_ids for item in greedy(engine, PROMPTS[batch], STEPS)]


@pytest.fixture(scope="session")
def expected(moe: Callable[[str], Path]) -> Callable[[str, int], Tokens]:
    """(family, batch) -> tokens of the CPU engine, and its counters checked on the way."""
    found: dict[tuple[str, int], Tokens] = {}

    def get(family: str, batch: int) -> Tokens:
        if (family, batch) not in found:
            engine = load_engine(moe(family), parallel=5)
            found[family, batch] = run(engine, batch)
            stats = engine.info.experts
            assert stats is not None
            assert stats.strategy == "cpu"
            assert stats.on_cpu == stats.misses > STEPS
            assert (stats.hits, stats.fills, stats.link_bytes, stats.slots) == (0, 0, 0, 0)
            assert all(len(set(tokens)) > 30 for tokens in found[family, batch])
        return found[family, batch]

    return get


def check_counters(stats: ExpertStats, batch: int, row_bytes: int) -> None:
    """What each strategy must have done, and nothing that it must not."""
    assert stats.link_bytes == row_bytes * _copied(stats)
    if stats.strategy == "cpu":
        assert stats.on_cpu == stats.misses > 0
        assert stats.fills == 0
        return
    assert stats.resident <= stats.slots
    if stats.strategy == "resident":
        assert (stats.misses, stats.fills, stats.on_cpu, stats.passes) == (0, 0, 0, 0)
        assert stats.hits > STEPS
        return
    assert stats.fills > 0
    assert stats.fills + stats.on_cpu == stats.misses
    if stats.strategy == "fetch":
        assert stats.on_cpu == 0
        small = stats.slots < EXPERTS
        assert (stats.passes > 0) == small, stats
        assert (stats.streamed > 0) == (batch == 5 and stats.slots >= 8)
    else:
        assert stats.on_cpu > 0
        assert stats.passes == 0
    assert stats.hits > 0 or stats.slots <= EXPERTS


def _copied(stats: ExpertStats) -> int:
    return stats.fills + stats.streamed + (TOTAL if stats.strategy == "resident" else 0)


def check(
    engines: Engines, want: Tokens, family: str, batch: int, strategy: str, slots: int
) -> None:
    engine = engines(family, device="emulated", strategy=strategy, expert_slots=slots)
    assert run(engine, batch) == want
    stats = engine.info.experts
    assert stats is not None
    assert (stats.slots, stats.total, stats.strategy) == (slots, TOTAL, strategy)
    row_bytes = stats.slot_bytes
    check_counters(stats, batch, row_bytes)
    engine.scheduler.check_integrity()


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(("strategy", "slots"), SHORT)
def test_tokens_are_equal_wherever_experts_are_computed(
    strategy: str, slots: int, batch: int, engines: Engines, expected: Callable[[str, int], Tokens]
) -> None:
    check(engines, expected("mixtral", batch), "mixtral", batch, strategy, slots)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(("strategy", "slots"), CASES)
def test_tokens_are_equal_in_every_combination(
    family: str,
    batch: int,
    strategy: str,
    slots: int,
    engines: Engines,
    expected: Callable[[str, int], Tokens],
) -> None:
    check(engines, expected(family, batch), family, batch, strategy, slots)


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_logits_are_the_same_bits_under_every_strategy(compute: str, engines: Engines) -> None:
    prompt = random_ids(70, seed=3)
    truth = engines(compute=compute).runner.logits(prompt, chunk_tokens=9)
    for strategy, slots in SHORT:
        engine = engines(device="emulated", strategy=strategy, expert_slots=slots, compute=compute)
        for chunk in (9, 70):
            found = engine.runner.logits(prompt, chunk_tokens=chunk)
            assert torch.equal(found, truth), (strategy, chunk)


@pytest.mark.parametrize("way", [CPU, STREAM])
def test_every_way_of_a_prefill_gives_the_same_bits(
    way: str, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = random_ids(70, seed=3)
    truth = engines().runner.logits(prompt)
    monkeypatch.setattr(WayChooser, "way", lambda *_: way)
    for slots in (8, 23, TOTAL):
        engine = engines(device="emulated", strategy="split", expert_slots=slots)
        assert torch.equal(engine.runner.logits(prompt), truth)
        stats = engine.info.experts
        assert stats is not None
        if way == STREAM:
            assert (stats.streamed, stats.on_cpu) == (TOTAL, 0)
        else:
            assert stats.streamed == 0 < stats.on_cpu == stats.misses


def test_reference_kernels_compute_the_same_tokens_on_the_device(engines: Engines) -> None:
    def tokens(**options: object) -> list[tuple[int, ...]]:
        engine = engines(kernels="reference", **options)
        return [item.token_ids for item in greedy(engine, PROMPTS[5][:2], 6)]

    want = tokens()
    for strategy, slots in (("fetch", 7), ("split", 23)):
        assert tokens(device="emulated", strategy=strategy, expert_slots=slots) == want


@pytest.mark.parametrize("fmt", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q6_k"])
def test_every_expert_format_computes_the_same_bits_from_a_slot(fmt: str, tmp_path: Path) -> None:
    sizes = TinySizes(hidden=256, heads=4, kv_heads=2, head_dim=64, num_experts=8, expert_inter=256)
    source = build_tiny_gguf("qwen3moe", tmp_path / "m.gguf", types={"experts": fmt}, sizes=sizes)
    convert_folder(source, tmp_path / "ftw")
    prompt = random_ids(40)
    truth = load_engine(tmp_path / "ftw").runner.logits(prompt, chunk_tokens=1)
    for strategy in ("fetch", "split"):
        engine = load_engine(
            tmp_path / "ftw",
            device="emulated",
            strategy=strategy,
            expert_slots=5,
            device_bytes=1 << 28,
        )
        assert torch.equal(engine.runner.logits(prompt, chunk_tokens=1), truth)
        stats = engine.info.experts
        assert stats is not None
        assert stats.fills > 0
        assert (stats.on_cpu > 0) == (strategy == "split")
        engine.close()


@pytest.mark.parametrize(
    "kind", ["fp8_block", "fp8_channel_ct", "mxfp4_ct", "nvfp4_ct", "nvfp4_modelopt", "dsv4"]
)
def test_released_formats_compute_the_same_tokens_from_slots(kind: str, tmp_path: Path) -> None:
    build_quantised("qwen3_moe", tmp_path, kind)
    convert_folder(tmp_path / "q", tmp_path / "ftw")
    prompts = PROMPTS[5][:2]
    want = [item.token_ids for item in greedy(load_engine(tmp_path / "ftw"), prompts, STEPS)]
    for strategy in ("fetch", "split", "auto"):
        engine = load_engine(
            tmp_path / "ftw",
            device="emulated",
            strategy=strategy,
            expert_slots=5,
            device_bytes=1 << 28,
        )
        assert [item.token_ids for item in greedy(engine, prompts, STEPS)] == want
        stats = engine.info.experts
        assert stats is not None
        assert stats.fills > 0
        assert (stats.on_cpu > 0) == (strategy != "fetch")
        engine.close()
