"""A GGUF file gives the model that the checkpoint gives from which it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftengine.convert.local import convert_folder
from tests.fakes.tiny_gguf_families import GGUF_FAMILIES, PLAIN, Manner, write_family_gguf
from tests.fakes.tiny_hybrids import build_hybrid
from tests.fakes.tiny_sparse import VARIANTS
from tests.ftengine.parity.tiny_engines import load_engine, random_ids

PROMPT = random_ids(40, seed=2)
LONG_PROMPTS = {"deepseek_v4": random_ids(150, seed=2)}
"""Where a shorter one has no entry of 128 tokens."""
_LONG = [1.0 + 0.5 * pair for pair in range(8)]
CHANGES: dict[str, dict[str, Any]] = {
    # such files have experts on every layer
    "qwen2_moe": {"mlp_only_layers": []},
    "qwen3_next": {"mlp_only_layers": []},
    # what follows is not in such files: readers take what the released models have
    "gpt_oss": {"swiglu_limit": 7.0},
    "gemma3": {"query_pre_attn_scalar": 16, "num_hidden_layers": 6, "layer_types": None},
    "minimax_m3": {
        "swiglu_limit": 7.0,
        # in such files every layer with experts has an indexer
        "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
    },
    "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192},
    "nemotron_h": {"layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"]},
    "phimoe": {
        "router_jitter_noise": 0.01,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 8,
            "long_factor": _LONG,
            "short_mscale": 1.25,
            "long_mscale": 1.25,
            "original_max_position_embeddings": 16,
        },
    },
}
CHANGES["deepseek_v4"] = {
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
}
CHANGES["nemotron_h_super"] = CHANGES["nemotron_h"]
SLOW = (*VARIANTS, "qwen3_5", "granitemoeshared", "solar_open", "hy_v3")
"""Where another family of the same rules stands for them."""
FAMILIES = [
    pytest.param(family, marks=[pytest.mark.slow] if family in SLOW else [])
    for family in GGUF_FAMILIES
]


@pytest.mark.parametrize("model", FAMILIES)
def test_a_gguf_file_and_its_checkpoint_give_the_same_logits(model: str, tmp_path: Path) -> None:
    source = build_hybrid(model, tmp_path / "hf", changes=CHANGES.get(model))
    family, logits = read(model, source, tmp_path / "gguf")
    wanted = convert_folder(source, tmp_path / "ftw")
    truth = load_engine(tmp_path / "ftw").runner.logits(LONG_PROMPTS.get(model, PROMPT))
    assert family == wanted["family"]
    assert float(truth.std()) > 0.1
    assert float((logits - truth).abs().max()) <= 2e-5


def read(model: str, source: Path, folder: Path, manner: Manner = PLAIN) -> tuple[str, Any]:
    """Family and logits of a file written from `source`."""
    folder.mkdir()
    write_family_gguf(model, source, folder / "tiny.gguf", manner)
    ftw = folder.with_name(folder.name + "-ftw")
    found = convert_folder(folder, ftw)
    return found["family"], load_engine(ftw).runner.logits(LONG_PROMPTS.get(model, PROMPT))


def test_limits_of_activations_count_in_both_kinds_of_files(tmp_path: Path) -> None:
    found = []
    for number, limit in enumerate((0.02, 1e6)):
        source = build_hybrid("bailing_hybrid", tmp_path / f"hf{number}")
        config = json.loads((source / "config.json").read_text("utf-8"))
        limits = [None, limit, 0, limit]
        config |= {"expert_swiglu_limit_list": limits, "share_expert_swiglu_limit_list": limits}
        (source / "config.json").write_text(json.dumps(config), "utf-8")
        _, logits = read("bailing_hybrid", source, tmp_path / f"gguf{number}")
        convert_folder(source, tmp_path / f"ftw{number}")
        own = load_engine(tmp_path / f"ftw{number}").runner.logits(PROMPT)
        assert float((logits - own).abs().max()) <= 2e-5
        found.append(own)
    _, free = read(
        "bailing_hybrid", build_hybrid("bailing_hybrid", tmp_path / "hf"), tmp_path / "g"
    )
    assert float((found[1] - free).abs().max()) <= 2e-5
    assert float((found[0] - free).abs().max()) > 1e-3


ALL_FULL = {"indexer_types": ["full"] * 5}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("deepseek_v3", {}),
        ("qwen3_next", CHANGES["qwen3_next"]),
        ("glm_moe_dsa", ALL_FULL),
    ],
)
def test_files_of_older_converters_give_the_same_model(
    model: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    source = build_hybrid(model, tmp_path / "hf", changes=changes)
    _, new = read(model, source, tmp_path / "new")
    _, old = read(model, source, tmp_path / "old", Manner(older=True))
    assert float((new - old).abs().max()) <= 2e-5


@pytest.mark.parametrize("model", ["qwen3_5_moe", "qwen3_next", "deepseek_v3", "nemotron_h"])
def test_quantised_matrices_are_taken_apart_and_turned_like_floats(
    model: str, tmp_path: Path
) -> None:
    source = build_hybrid(model, tmp_path / "hf", changes=CHANGES.get(model))
    _, codes = read(model, source, tmp_path / "codes", Manner(matrices="q8_0"))
    _, floats = read(model, source, tmp_path / "floats", Manner(matrices="q8_0", rounded=True))
    assert float((codes - floats).abs().max()) <= 2e-5
