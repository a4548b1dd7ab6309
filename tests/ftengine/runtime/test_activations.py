"""--activations int8 end to end: what is told, what is refused, and that it changes results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ftengine.config import ComputeConfig, EngineConfig
from ftengine.convert.local import convert_folder
from ftengine.errors import RequestError
from ftengine.runtime.engine import Engine
from tests.fakes.tiny_models import TinySizes, build_tiny_gguf
from tests.ftengine.parity.tiny_engines import random_ids

SIZES = TinySizes(
    hidden=256, heads=4, kv_heads=2, head_dim=64, inter=256, num_experts=4, expert_inter=256
)


@pytest.fixture(scope="module")
def ftw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experts in q4_k, all other matrices in bf16 or f32."""
    folder = tmp_path_factory.mktemp("qwen3moe")
    types = {"matrix": "bf16", "experts": "q4_k"}
    source = build_tiny_gguf("qwen3moe", folder / "m.gguf", types=types, sizes=SIZES)
    convert_folder(source, folder / "ftw")
    return folder / "ftw"


def engine_of(ftw: Path, activations: str, kernels: str = "native", target: str = "") -> Engine:
    compute = ComputeConfig(activations=activations, kernels=kernels, cpu_target=target, threads=2)
    engine = Engine(EngineConfig(ftw, context_tokens=128, step_tokens=64, compute=compute))
    engine.load()
    return engine


def notes_of(engine: Engine) -> list[str]:
    return [note for note in engine.info.notes if note.startswith("activations int8")]


def test_it_is_told_and_what_it_does_not_reach_too(ftw: Path) -> None:
    plain, small = engine_of(ftw, "auto"), engine_of(ftw, "int8", target="scalar")
    assert plain.info.kernels["activations"] == "auto"
    assert small.info.kernels["activations"] == "int8"
    assert not notes_of(plain)
    target, formats = notes_of(small)
    assert "the target scalar has no integer products" in target
    assert "% of the weights (bf16" in formats


def test_results_change_a_little_and_alike_on_every_target(ftw: Path) -> None:
    ids = random_ids(40, seed=5)
    exact = engine_of(ftw, "auto", target="scalar").runner.logits(ids)
    scalar = engine_of(ftw, "int8", target="scalar").runner.logits(ids)
    fastest = engine_of(ftw, "int8").runner.logits(ids)
    again = engine_of(ftw, "auto", target="scalar").runner.logits(ids)
    assert torch.equal(again, exact)  # nothing is left behind
    for got in (scalar, fastest):
        error = (got - exact).square().mean().sqrt() / exact.std()
        assert 1e-5 < float(error) < 0.2
    assert float((scalar - fastest).square().mean().sqrt() / exact.std()) < 0.2


def test_reference_kernels_say_that_they_do_not_round(ftw: Path) -> None:
    (note,) = notes_of(engine_of(ftw, "int8", kernels="reference"))
    assert note == "activations int8 has no effect: reference kernels compute"


def test_what_contradicts_is_refused() -> None:
    with pytest.raises(RequestError, match="--activations int4 is not valid: it must be one of"):
        ComputeConfig(activations="int4")
    with pytest.raises(RequestError, match="it must be auto with --compute float32"):
        ComputeConfig(activations="int8", compute="float32")
