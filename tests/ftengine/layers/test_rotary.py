"""Rope tables against the reference library's own, for every scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ftengine.errors import LoadError
from ftengine.layers.rotary import RopeScaling, make_tables
from ftengine.models.families.base import Config

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
    with pytest.raises(LoadError, match="spiral"):
        make_tables(RopeScaling(64, 1e4, "spiral"), 8)


@pytest.mark.parametrize("positions", [40, 100])
def test_two_lists_of_divisors_match_the_reference_library(positions: int) -> None:
    """The short list within the trained context, the long one beyond."""
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1 + 0.1 * j for j in range(8)],
        "long_factor": [2 + 0.3 * j for j in range(8)],
        "original_max_position_embeddings": 64,
    }
    config = transformers.PhimoeConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_parameters={**rope, "short_mscale": 1.0, "long_mscale": 1.0},
    )
    inverse, factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=positions)
    expected = torch.arange(positions)[:, None] * inverse[None]
    settings = {"max_position_embeddings": 256, "rope_scaling": rope}
    spec = Config(settings).rope(16, 10000.0)
    tables = make_tables(RopeScaling(spec.dims, spec.theta, spec.scaling, spec.factors), positions)
    assert torch.allclose(tables.cos, expected.cos() * factor, atol=2e-5)
    assert torch.allclose(tables.sin, expected.sin() * factor, atol=2e-5)
