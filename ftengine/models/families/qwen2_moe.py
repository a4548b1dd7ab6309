"""qwen2_moe: qwen2 attention; softmax experts beside a gated shared one. Qwen1.5-MoE, Qwen2-57B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import EXPERT_KEYS, Config, Family, GgufKey, read_model
from ftengine.models.families.names import (
    gguf_rules,
    gguf_shared,
    hf_dense_mlp,
    hf_experts,
    hf_rules,
)
from ftengine.models.families.qwen2 import read_biased_attention
from ftengine.models.families.qwen3_moe import sparse_layers
from ftengine.models.families.qwen3_next import hf_shared_expert, read_moe
from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Qwen2 MoE model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    moe = read_moe(config, normalize=config.flag("norm_topk_prob", False), default_top=4)
    sparse = sparse_layers(config)
    mlp = None
    if not all(sparse):
        mlp = MlpSpec(config.size("intermediate_size"), config.activation())
    layers = tuple(
        LayerSpec(attention, moe if is_sparse or mlp is None else mlp)
        for attention, is_sparse in zip(read_biased_attention(config), sparse, strict=True)
    )
    return read_model(config, "qwen2_moe", layers)


FAMILY = Family(
    name="qwen2_moe",
    architectures=("Qwen2MoeForCausalLM",),
    model_types=("qwen2_moe",),
    gguf_archs=("qwen2moe",),
    read_config=read_config,
    weights=hf_rules(
        *hf_experts("mlp", "gate_proj", "up_proj", "down_proj"),
        *hf_shared_expert(),
        *hf_dense_mlp(),
    ),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared(gate=True)),
    gguf_keys=(
        *EXPERT_KEYS,
        GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
        GgufKey("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
    ),
)
