"""glm4_moe: GLM-4.5 to 4.7; grouped-query attention with biases, half of each head rotates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import (
    ROTATED_KEY,
    ROUTED_KEYS,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import (
    drafting_notes,
    hf_moe,
    read_moe,
    read_router,
    stack,
)
from ftengine.models.families.names import gguf_rules, gguf_shared, hf_rules
from ftengine.models.spec import ModelConfig
from ftengine.models.weight_names import Rule


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a GLM-4.5 to 4.7 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention = read_attention(
        config,
        default_theta=10000.0,
        qk_norm=config.flag("use_qk_norm", False),
        bias=config.flag("attention_bias", False),
        default_partial=0.5,
    )
    mixers = (replace(attention, out_bias=False),) * config.num_layers()
    moe = read_moe(config, read_router(config, default_scale=1.0))
    return read_model(
        config,
        "glm4_moe",
        stack(config, mixers, moe, default_first=1),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        notes=drafting_notes(values),
    )


GGUF_WEIGHTS = (
    *gguf_rules(experts=True),
    *gguf_shared(),
    Rule("blk.{layer}.post_attention_norm.weight", "layers.{layer}.ffn_norm"),
)
GGUF_KEYS = (
    *ROUTED_KEYS,
    GgufKey("n_shared_experts", "expert_shared_count"),
    ROTATED_KEY,
    GgufKey("n_group", "expert_group_count"),
    GgufKey("topk_group", "expert_group_used_count"),
    GgufKey("attention_bias", "blk.0.attn_q.bias", "tensor"),
    GgufKey("use_qk_norm", "blk.0.attn_q_norm.weight", "tensor"),
)

FAMILY = Family(
    name="glm4_moe",
    architectures=("Glm4MoeForCausalLM",),
    model_types=("glm4_moe",),
    gguf_archs=("glm4moe",),
    read_config=read_config,
    weights=hf_rules(*hf_moe()),
    gguf_weights=GGUF_WEIGHTS,
    gguf_keys=GGUF_KEYS,
)
