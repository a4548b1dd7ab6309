"""hy_v3: Hunyuan 3; a norm on every q and k head, sigmoid router with a correction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import (
    EXPERT_KEYS,
    MLP_KINDS_KEY,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import drafting_notes, hf_moe, stack
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    gguf_shared,
    hf_dense_mlp,
    hf_rules,
    layer_rules,
)
from ftengine.models.families.windowed import shared_experts
from ftengine.models.spec import ModelConfig, MoeSpec, RouterSpec


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Hunyuan 3 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention = read_attention(
        config, default_theta=11158840.0, qk_norm=True, bias=config.flag("attention_bias", False)
    )
    router = RouterSpec(
        config.size("num_experts", "num_local_experts", default=192),
        config.size("num_experts_per_tok", default=8),
        score="sigmoid",
        normalize=config.flag("route_norm", True),
        scale=config.number("router_scaling_factor", 2.826),
        correction=True,
    )
    width = config.size("moe_intermediate_size", "expert_hidden_dim")
    moe = MoeSpec(
        router,
        width,
        config.activation(),
        shared=shared_experts(config, "num_shared_experts", width, 1),
    )
    return read_model(
        config,
        "hy_v3",
        stack(config, (attention,) * config.num_layers(), moe, default_first=1),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        notes=drafting_notes(values),
    )


FAMILY = Family(
    name="hy_v3",
    architectures=("HYV3ForCausalLM",),
    model_types=("hy_v3",),
    gguf_archs=("hy_v3",),
    read_config=read_config,
    weights=hf_rules(
        *hf_moe(),
        *hf_dense_mlp("mlp.shared_mlp", "shared"),
        *layer_rules(
            ("mlp.router.gate.weight", "router"),
            ("mlp.expert_bias", "router.correction"),
            ("mlp.e_score_correction_bias", "router.correction"),
        ),
    ),
    gguf_weights=(
        *gguf_rules(experts=True),
        *gguf_shared(),
        *gguf_layer(("exp_probs_b", "router.correction")),  # without an ending in these files
    ),
    gguf_keys=(
        *EXPERT_KEYS,
        MLP_KINDS_KEY,
        GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
        GgufKey(
            "num_shared_experts",
            "expert_shared_feed_forward_length",
            over="expert_feed_forward_length",
            default=1,
        ),
        GgufKey("router_scaling_factor", "expert_weights_scale", "number", 1.0),
        GgufKey("route_norm", "expert_weights_norm", "flag", False),
    ),
)
