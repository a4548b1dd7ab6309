"""qwen2: dense; attention with biases on q, k and v. Qwen2 and Qwen2.5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import Config, Family, read_model
from ftengine.models.families.names import gguf_rules, hf_dense_mlp, hf_rules
from ftengine.models.families.qwen3 import read_layers_attention
from ftengine.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelConfig


def read_biased_attention(config: Config) -> tuple[AttentionSpec, ...]:
    """Attention of every layer; the window counts only where use_sliding_window is true."""
    return tuple(
        replace(block, qk_norm=False, qkv_bias=True, out_bias=False)
        for block in read_layers_attention(config)
    )


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a dense Qwen2 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    mlp = MlpSpec(config.size("intermediate_size"), config.activation())
    layers = tuple(LayerSpec(block, mlp) for block in read_biased_attention(config))
    return read_model(config, "qwen2", layers)


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    model_types=("qwen2",),
    gguf_archs=("qwen2",),
    read_config=read_config,
    weights=hf_rules(*hf_dense_mlp()),
    gguf_weights=gguf_rules(experts=False),
)
