"""Every family against the reference library, and every way of running against every other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ftengine.cache.kv_pool import KvFormat, page_bytes
from ftengine.kernels.native import NativeKernels
from ftengine.loader.ftw import FtwModel
from ftengine.loader.load import read_model_config
from ftengine.models.build import kv_shapes
from tests.fakes.tiny_hybrids import HYBRIDS
from tests.fakes.tiny_sparse import VARIANTS
from tests.ftengine.parity.tiny_engines import FAMILIES, greedy, load_engine, random_ids

Tiny = Callable[[str], tuple[Path, Path]]
families = pytest.mark.parametrize(
    "family", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.slow) for name in HYBRIDS)]
)
SHOWN = [
    pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in HYBRIDS
]
every_family = pytest.mark.parametrize("family", [*FAMILIES, *SHOWN])
PROMPT = random_ids(75, seed=1)
DELTA = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


def tolerance(family: str) -> float:
    """The library's delta rule works in chunks; it differs from its own float64 run as much."""
    return 4e-4 if family in DELTA else 1e-4


@pytest.fixture(scope="session")
def oracle(tiny: Tiny) -> Callable[[str], Any]:
    """family -> the reference library's model in float32."""
    transformers = pytest.importorskip("transformers")
    loaded: dict[str, Any] = {}

    def get(family: str) -> Any:
        if family not in loaded:
            folder = tiny(family)[0]
            config = json.loads((folder / "config.json").read_text("utf-8"))
            named = config["architectures"][0]
            model_class = getattr(transformers, named, transformers.AutoModelForCausalLM)
            loaded[family] = model_class.from_pretrained(
                folder, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        return loaded[family]

    return get


def oracle_logits(model: Any, ids: tuple[int, ...]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0].float()
    return logits


def oracle_greedy(
    model: Any, ids: tuple[int, ...], count: int, presence: float = 50.0
) -> tuple[int, ...]:
    tokens = list(ids)
    with torch.no_grad():
        step = model(torch.tensor([ids]), use_cache=True)
        for _ in range(count):
            logits = step.logits[0, -1].clone()
            logits[:3] -= 100.0
            logits[sorted(set(tokens))] -= presence
            tokens.append(int(logits.argmax()))
            step = model(
                torch.tensor([tokens[-1:]]),
                cache=step.past_key_values,
                position_ids=torch.tensor([[len(tokens) - 1]]),
            )
    return tuple(tokens[len(ids) :])


@every_family
def test_logits_and_greedy_tokens_match_the_reference_library(
    family: str, tiny: Tiny, oracle: Callable[[str], Any], report: list[dict[str, Any]]
) -> None:
    engine = load_engine(tiny(family)[1])
    truth = oracle_logits(oracle(family), PROMPT)
    assert float(truth.std()) > 0.1  # else the comparison would prove nothing
    difference = float((engine.runner.logits(PROMPT) - truth).abs().max())
    assert difference <= tolerance(family)
    count = 64 if family in FAMILIES else 20
    for presence in (0.0, 50.0) if family in FAMILIES else (50.0,):
        expected = oracle_greedy(oracle(family), PROMPT, count, presence)
        assert greedy(engine, [PROMPT], count, presence)[0].token_ids == expected
    assert len(set(expected)) > count // 2 - 2
    row = {"difference": difference, "tolerance": tolerance(family), "greedy_tokens": count}
    row |= {"std": float(truth.std()), "oracle": oracle_name(oracle(family))}
    report.append(described(family, tiny, "logits") | row)


def oracle_name(model: Any) -> str:
    """Which implementation it was compared with."""
    import transformers

    return f"transformers {transformers.__version__}, {type(model).__name__}"


def described(family: str, tiny: Tiny, test: str) -> dict[str, Any]:
    """What a row of the report says of the model and of what it is compared with."""
    with FtwModel.open(tiny(family)[1]) as model:
        built = read_model_config(model)
    return {
        "model": family,
        "test": test,
        "family": built.family,
        "experts": built.num_experts,
    }


@families
def test_scalar_avx2_and_avx512_agree_with_the_reference_library(
    family: str, tiny: Tiny, oracle: Callable[[str], Any]
) -> None:
    truth = oracle_logits(oracle(family), PROMPT)
    expected = oracle_greedy(oracle(family), PROMPT, 16)
    for target in NativeKernels.load().info().targets:
        engine = load_engine(tiny(family)[1], target=target)
        assert engine.info.kernels["target"] == target
        assert float((engine.runner.logits(PROMPT) - truth).abs().max()) <= tolerance(family), (
            target
        )
        assert greedy(engine, [PROMPT], 16)[0].token_ids == expected, target


@families
def test_reference_kernels_give_the_same_answers(family: str, tiny: Tiny) -> None:
    native = load_engine(tiny(family)[1])
    plain = load_engine(tiny(family)[1], kernels="reference")
    assert plain.info.kernels["set"] == "reference"
    difference = native.runner.logits(PROMPT) - plain.runner.logits(PROMPT)
    assert float(difference.abs().max()) <= tolerance(family)
    assert greedy(native, [PROMPT], 12)[0].token_ids == greedy(plain, [PROMPT], 12)[0].token_ids


@families
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_chunked_prefill_is_bit_identical(family: str, compute: str, tiny: Tiny) -> None:
    engine = load_engine(tiny(family)[1], compute=compute)
    whole = engine.runner.logits(PROMPT)
    for chunk in (1, 3, 16, 17, 40, 74):
        assert torch.equal(engine.runner.logits(PROMPT, chunk_tokens=chunk), whole), chunk


@families
def test_thread_count_does_not_change_a_bit(family: str, tiny: Tiny) -> None:
    one = load_engine(tiny(family)[1], threads=1).runner.logits(PROMPT)
    assert torch.equal(load_engine(tiny(family)[1], threads=3).runner.logits(PROMPT), one)


@families
@pytest.mark.parametrize("step_tokens", [512, 24])
def test_batch_of_unequal_lengths_equals_single_runs(
    family: str, step_tokens: int, tiny: Tiny
) -> None:
    prompts = [random_ids(count, seed=count) for count in (1, 7, 16, 33, 100, 180)]
    engine = load_engine(tiny(family)[1], parallel=4, step_tokens=step_tokens)
    together = greedy(engine, prompts, 24)
    for prompt, result in zip(prompts, together, strict=True):
        assert greedy(engine, [prompt], 24)[0].token_ids == result.token_ids
    engine.scheduler.check_integrity()


@families
def test_preempted_sequences_give_the_same_tokens(family: str, tiny: Tiny) -> None:
    ftw = tiny(family)[1]
    prompts = [random_ids(count, seed=count) for count in (40, 50, 60)]
    roomy = greedy(load_engine(ftw, context=128), prompts, 48)
    with FtwModel.open(ftw) as model:
        one_page = page_bytes(kv_shapes(read_model_config(model)), KvFormat(torch.float32))
    tight = load_engine(ftw, context=128, kv_bytes=13 * one_page)
    results = greedy(tight, prompts, 48)
    assert tight.metrics.preemptions > 0
    assert [item.token_ids for item in results] == [item.token_ids for item in roomy]
    assert tight.metrics.kv_pages_free == tight.metrics.kv_pages


@pytest.mark.parametrize("family", SHOWN)
def test_states_and_windows_survive_chunks_batches_and_preemption(
    family: str, tiny: Tiny, report: list[dict[str, Any]]
) -> None:
    """The short form of the tests above for families that they run in the long form only."""
    prompts = [random_ids(count, seed=count) for count in (7, 40, 90)]
    engine = load_engine(tiny(family)[1], parallel=1)
    whole = engine.runner.logits(PROMPT)
    for chunk in (1, 63):
        assert torch.equal(engine.runner.logits(PROMPT, chunk_tokens=chunk), whole), chunk
    alone = [greedy(engine, [prompt], 16)[0].token_ids for prompt in prompts]
    with FtwModel.open(tiny(family)[1]) as model:
        one_page = page_bytes(kv_shapes(read_model_config(model)), KvFormat(torch.float32))
    tight = load_engine(
        tiny(family)[1], context=128, parallel=3, step_tokens=24, kv_bytes=9 * one_page
    )
    together = greedy(tight, prompts, 16)
    assert [item.token_ids for item in together] == alone
    assert tight.metrics.preemptions > 0
    tight.scheduler.check_integrity()
    row = {"prompts": len(prompts), "preemptions": tight.metrics.preemptions}
    report.append(described(family, tiny, "runs") | row)
