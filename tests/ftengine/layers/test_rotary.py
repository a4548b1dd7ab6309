"""Rope tables against the reference library's own, for every scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ftengine.errors import LoadError
from ftengine.layers.rotary import RopeScaling, make_tables

CASES: list[tuple[str, dict[str, float]]] = [
    ("none", {}),
    ("linear", {"factor": 8.0}),
    (
        "llama3",
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 2048}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 2048, "truncate": False}),
    ("yarn", {"factor": 4.0, "original_max_position_embeddings": 2048, "attention_factor": 1.5}),
    (
        "yarn",
        {
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 1.0,
            "mscale_all_dim": 0.8,
        },
    ),
]


@pytest.mark.parametrize(("kind", "numbers"), CASES)
def test_tables_match_the_reference_library(kind: str, numbers: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    rope = {"rope_type": "default" if kind == "none" else kind, "rope_theta": 50000.0, **numbers}
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters=rope,
    )
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    count = 300
    cos, sin = module(torch.zeros(1, count, 4), torch.arange(count)[None])
    factors = tuple((key, float(value)) for key, value in numbers.items())
    tables = make_tables(RopeScaling(64, 50000.0, kind, factors), count)
    assert float((tables.cos - cos[0, :, :32]).abs().max()) < 2e-4  # float32 angles over there
    assert float((tables.sin - sin[0, :, :32]).abs().max()) < 2e-4


def test_unknown_scaling_is_refused() -> None:
    with pytest.raises(LoadError, match="longrope"):
        make_tables(RopeScaling(64, 1e4, "longrope"), 8)
