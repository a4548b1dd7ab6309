"""minimax_m2: norms over all heads of q and of k; sigmoid router with a correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import (
    ROTATED_KEY,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.names import (
    gguf_rules,
    gguf_shared,
    hf_experts,
    hf_rules,
    layer_rules,
)
from ftengine.models.spec import HeadNorm, LayerSpec, ModelConfig, MoeSpec, RouterSpec


def with_rotary_dim(values: Mapping[str, Any]) -> dict[str, Any]:
    """rotary_dim as the part of a head that rotates."""
    given = dict(values)
    if given.get("rotary_dim") is not None and given.get("partial_rotary_factor") is None:
        config = Config(given)
        given["partial_rotary_factor"] = config.size("rotary_dim") / config.size("head_dim")
    return given


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a MiniMax-M2 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(with_rotary_dim(values))
    attention = read_attention(config, default_theta=5e6, qk_norm=True, default_partial=1.0)
    attention = replace(attention, norm=HeadNorm(whole=True))
    router = RouterSpec(
        config.size("num_local_experts", "num_experts"),
        config.size("num_experts_per_tok", default=8),
        score="sigmoid",
        correction=True,
    )
    moe = MoeSpec(router, config.size("intermediate_size"), config.activation())
    return read_model(config, "minimax_m2", (LayerSpec(attention, moe),) * config.num_layers())


FAMILY = Family(
    name="minimax_m2",
    architectures=("MiniMaxM2ForCausalLM",),
    model_types=("minimax_m2",),
    gguf_archs=("minimax-m2",),
    read_config=read_config,
    weights=hf_rules(
        *hf_experts("block_sparse_moe", "w1", "w3", "w2"),
        *layer_rules(
            ("block_sparse_moe.e_score_correction_bias", "router.correction"),
            ("mlp.e_score_correction_bias", "router.correction"),
        ),
    ),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared()),
    gguf_keys=(
        GgufKey("num_local_experts", "expert_count"),
        GgufKey("num_experts_per_tok", "expert_used_count"),
        GgufKey("intermediate_size", "expert_feed_forward_length"),
        ROTATED_KEY,
    ),
)
