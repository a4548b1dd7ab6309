"""afmoe: Trinity; gated attention, windowed layers with positions, four norms, sigmoid router."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import (
    EXPERT_KEYS,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import hf_moe
from ftengine.models.families.names import gguf_rules, gguf_shared, hf_rules, layer_rules
from ftengine.models.families.windowed import nope_on_full, shared_experts
from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig, MoeSpec, RouterSpec
from ftengine.models.weight_names import Rule

_NORMS = (
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "attn_post_norm"),
    ("pre_mlp_layernorm", "ffn_norm"),
    ("post_mlp_layernorm", "ffn_post_norm"),
)


def _moe(config: Config) -> MoeSpec:
    router = RouterSpec(
        config.size("num_experts", "num_local_experts", default=64),
        config.size("num_experts_per_tok", default=6),
        score="sigmoid",
        normalize=config.flag("route_norm", True),
        scale=config.number("route_scale", 1.0),
        correction=True,
    )
    width = config.size("moe_intermediate_size")
    shared = shared_experts(config, "num_shared_experts", width, 2)
    return MoeSpec(router, width, config.activation(), shared=shared)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Trinity model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention = read_attention(config, default_theta=10000.0, qk_norm=True)
    attention = replace(attention, gate=True, gate_apart=True)
    every = config.size("global_attn_every_n_layers", default=4)
    moe, dense = _moe(config), config.values.get("num_dense_layers", 1)
    mlp = MlpSpec(config.size("intermediate_size"), config.activation())
    layers = tuple(
        LayerSpec(mixer, mlp if layer < dense else moe, post_norms=True)
        for layer, mixer in enumerate(nope_on_full(config, attention, every, 1024))
    )
    scale = math.sqrt(config.size("hidden_size")) if config.flag("mup_enabled", False) else 1.0
    return read_model(
        config,
        "afmoe",
        layers,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        embedding_scale=scale,
    )


FAMILY = Family(
    name="afmoe",
    architectures=("AfmoeForCausalLM",),
    model_types=("afmoe",),
    gguf_archs=("afmoe",),
    read_config=read_config,
    weights=hf_rules(
        *hf_moe(),
        *layer_rules(
            ("self_attn.gate_proj.weight", "attn.gate"),
            ("mlp.router.gate.weight", "router"),
            ("mlp.expert_bias", "router.correction"),
        ),
        norms=_NORMS,
    ),
    gguf_weights=(
        *gguf_rules(experts=True),
        *gguf_shared(),
        Rule("blk.{layer}.attn_gate.weight", "layers.{layer}.attn.gate"),
        Rule("blk.{layer}.post_attention_norm.weight", "layers.{layer}.attn_post_norm"),
        Rule("blk.{layer}.post_ffw_norm.weight", "layers.{layer}.ffn_post_norm"),
    ),
    gguf_keys=(
        *EXPERT_KEYS,
        GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
        GgufKey("num_shared_experts", "expert_shared_count", "count", 0),
        GgufKey("num_dense_layers", "leading_dense_block_count", "count", 0),
        GgufKey("route_scale", "expert_weights_scale", "number"),
        GgufKey("route_norm", "expert_weights_norm", "flag"),
        GgufKey("sliding_window", "attention.sliding_window"),
        GgufKey("mup_enabled", "", "flag", True),
    ),
)
