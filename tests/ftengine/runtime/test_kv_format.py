"""--kv-format end to end: sizes, notes, and tokens that no batch, chunk or cache changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ftengine.config import ComputeConfig, EngineConfig, MemoryConfig
from ftengine.convert.local import convert_folder
from ftengine.errors import RequestError
from ftengine.protocol import MemoryRequest
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_hybrids import HYBRIDS, build_hybrid
from tests.fakes.tiny_models import TinySizes
from tests.ftengine.parity.tiny_engines import greedy, make_tiny, random_ids
from tests.ftengine.runtime.edit_scripts import Script

SIZES = TinySizes(head_dim=32)
FAMILIES = ("llama", "qwen3_moe", "gpt_oss", "qwen3_5")
PROMPT = random_ids(120, seed=3)
Models = Callable[[str], Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Converts each family once."""
    made: dict[str, Path] = {}

    def model(family: str) -> Path:
        if family not in made:
            folder = tmp_path_factory.mktemp(family)
            if family in HYBRIDS:
                source = build_hybrid(family, folder / "hf", changes={"head_dim": 32})
                convert_folder(source, folder / "ftw")
            else:
                make_tiny(family, folder, sizes=SIZES)
            made[family] = folder / "ftw"
        return made[family]

    return model


def engine_of(
    ftw: Path, kv_format: str = "q8_0", kernels: str = "native", target: str = "", **more: Any
) -> Engine:
    compute = more.pop("compute", "float32")
    memory = MemoryConfig(kv_format=kv_format, kv_bytes=more.pop("kv_bytes", 0))
    config = EngineConfig(
        ftw,
        context_tokens=192,
        step_tokens=96,
        prefill_share=1.0,
        compute=ComputeConfig(compute=compute, kernels=kernels, cpu_target=target, threads=2),
        memory=memory,
        **{"num_parallel": 4, **more},
    )
    engine = Engine(config)
    engine.load()
    return engine


def test_q8_0_takes_17_of_32_bytes_of_bf16_everywhere_it_is_told(models: Models) -> None:
    ftw = models("llama")
    plain, small = (engine_of(ftw, name, compute="bfloat16") for name in ("auto", "q8_0"))
    assert 32 * small.info.kv_bytes == 17 * plain.info.kv_bytes
    assert (plain.info.kv_format, small.info.kv_format) == ("bf16", "q8_0")
    assert not [note for note in small.info.notes if "KV cache" in note]
    pages = [engine.scheduler._pages.num_pages for engine in (plain, small)]
    assert pages[0] == pages[1]
    budget = plain.info.kv_bytes
    state = small.resize_sync(MemoryRequest(kv_bytes=budget))
    assert state.kv_pages == 32 * pages[0] // 17
    assert budget - small.runner.pool.bytes_per_page < state.kv_bytes <= budget
    fixed = engine_of(ftw, kv_bytes=budget)
    assert fixed.info.kv_bytes == state.kv_bytes


@pytest.mark.parametrize(
    ("asked", "compute", "dtype"),
    [
        ("auto", "bfloat16", torch.bfloat16),
        ("auto", "float32", torch.float32),
        ("bf16", "float32", torch.bfloat16),
        ("f32", "bfloat16", torch.float32),
    ],
)
def test_plain_formats_are_what_is_asked_for(
    asked: str, compute: str, dtype: torch.dtype, models: Models
) -> None:
    engine = engine_of(models("llama"), asked, compute=compute)
    assert {item.dtype for item in engine.runner.pool.keys} == {dtype}
    assert engine.info.kv_format == {torch.bfloat16: "bf16", torch.float32: "f32"}[dtype]


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="--kv-format q4_0 is not valid: it must be one of auto"):
        MemoryConfig(kv_format="q4_0")


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_and_batches_change_no_bit(family: str, models: Models) -> None:
    engine = engine_of(models(family))
    assert engine.info.kv_format == "q8_0"
    whole = engine.runner.logits(PROMPT)
    for chunk in (1, 16, 63):
        assert torch.equal(engine.runner.logits(PROMPT, chunk_tokens=chunk), whole), chunk
    exact = engine_of(models(family), "f32").runner.logits(PROMPT)
    error = (whole - exact).square().mean().sqrt() / exact.std()
    assert 1e-6 < float(error) < 0.05  # a token may go to another expert
    prompts = [random_ids(count, seed=count) for count in (5, 33, 70)]
    alone = [greedy(engine, [prompt], 12)[0].token_ids for prompt in prompts]
    assert [item.token_ids for item in greedy(engine, prompts, 12)] == alone


@pytest.mark.parametrize("family", FAMILIES)
def test_edited_conversations_get_the_tokens_they_get_without_a_cache(
    family: str, models: Models
) -> None:
    ftw = models(family)
    truth = engine_of(ftw, num_parallel=6, prefix_cache=False)
    engine = engine_of(ftw, num_parallel=6)
    scripts = [Script(seed) for seed in range(6)]
    for _ in range(3):
        asked = [script.request() for script in scripts]
        found, expected = engine.generate_sync(asked), truth.generate_sync(asked)
        assert [item.token_ids for item in found] == [item.token_ids for item in expected]
        for script, theirs in zip(scripts, expected, strict=True):
            script.go_on(theirs.token_ids)
        engine.scheduler.reuse.tree.evict(30)  # parked, and back with the next turn
        engine.scheduler.check_integrity()
    assert engine.info.cache is not None
    assert engine.info.cache.hit_tokens > 0.3 * engine.info.cache.looked_up_tokens
    assert engine.info.cache.returned_tokens > 0


@pytest.mark.parametrize("family", FAMILIES[:1])
def test_native_targets_agree_with_the_reference(family: str, models: Models) -> None:
    """Apart from keys that are rounded to the neighbour: a step of a group in 128."""
    ftw = models(family)
    expected = engine_of(ftw, kernels="reference").runner.logits(PROMPT)
    for target in ("scalar", "avx2"):
        found = engine_of(ftw, target=target).runner.logits(PROMPT)
        assert float((found - expected).abs().max() / expected.std()) < 0.02, target


def test_a_cache_that_cannot_be_q8_0_says_so(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    latent = engine_of(make_tiny("deepseek_v2", tmp_path / "latent")[1])
    assert latent.info.kv_format == "f32"
    assert any("q8_0 has no effect on the KV cache" in note for note in latent.info.notes)
    narrow = engine_of(make_tiny("llama", tmp_path / "narrow")[1])  # heads of 16 numbers
    assert narrow.info.kv_format == "f32"
    assert any("q8_0 has no effect on the KV cache" in note for note in narrow.info.notes)
