"""Quantised releases end to end: the engine equals the reference library on what the weights are.

The reference gets the weights dequantised in float64 by tests/fakes/quantised.py, so config
parsing, conversion, loading, packing and kernels are all under test.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ftengine.convert.local import convert_folder
from tests.fakes.quantised import KINDS, SIZES, build_quantised
from tests.ftengine.parity.tiny_engines import greedy, load_engine, random_ids

PROMPT = random_ids(40)
ALL = [(family, kind) for family in ("llama", "qwen3", "mixtral", "qwen3_moe") for kind in KINDS]
SHORT = {("qwen3_moe", kind) for kind in KINDS} | {
    ("mixtral", "dsv4"),
    ("mixtral", "nvfp4_ct"),
    ("llama", "fp8_block"),
    ("llama", "mixed_ct"),
    ("qwen3", "fp8_block_bf16"),
}


def oracle(folder: Path) -> torch.Tensor:
    transformers = pytest.importorskip("transformers")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([PROMPT])).logits[0].float()
    return logits


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        pytest.param(*pair, marks=() if pair in SHORT else pytest.mark.slow, id="-".join(pair))
        for pair in ALL
    ],
)
def test_logits_equal_the_reference_library_on_dequantised_weights(
    family: str, kind: str, tmp_path: Path
) -> None:
    build_quantised(family, tmp_path, kind)
    result = convert_folder(tmp_path / "q", tmp_path / "ftw")
    truth = oracle(tmp_path / "plain")
    assert float(truth.std()) > 0.1
    engine = load_engine(tmp_path / "ftw")
    assert float((engine.runner.logits(PROMPT) - truth).abs().max()) <= 1e-4
    assert not any("reference path" in note for note in engine.info.notes)
    assert result["details"]["quantization_level"] in ("FP8", "MXFP4", "NVFP4", "INT4")


@pytest.mark.parametrize("kind", ["fp8_block", "mxfp4_ct", "nvfp4_ct"])
def test_reference_kernels_and_bfloat16_give_the_same_tokens(kind: str, tmp_path: Path) -> None:
    build_quantised("qwen3_moe", tmp_path, kind)
    convert_folder(tmp_path / "q", tmp_path / "ftw")
    expected = load_engine(tmp_path / "ftw")
    plain = load_engine(tmp_path / "ftw", kernels="reference")
    assert greedy(plain, [PROMPT], 8)[0].token_ids == greedy(expected, [PROMPT], 8)[0].token_ids
    rounded = load_engine(tmp_path / "ftw", compute="bfloat16")
    difference = rounded.runner.logits(PROMPT) - expected.runner.logits(PROMPT)
    # Of one token two experts may lie so close that rounding chooses the other one.
    assert int((difference.abs().amax(-1) >= 0.1).sum()) <= 1


def test_the_memory_said_before_is_the_memory_taken(tmp_path: Path) -> None:
    for kind in ("fp8_block", "nvfp4_modelopt", "mixed_ct", "fp8_channel_ct", "int4_ct"):
        build_quantised("qwen3_moe", tmp_path / kind, kind)
        result = convert_folder(tmp_path / kind / "q", tmp_path / kind / "ftw")
        engine = load_engine(tmp_path / kind / "ftw")
        assert result["load_bytes"] == pytest.approx(engine.info.weights_bytes, rel=0.05)
        assert (
            result["expert_bytes"]
            == SIZES.layers * SIZES.num_experts * (result["expert_row_bytes"])
        )
