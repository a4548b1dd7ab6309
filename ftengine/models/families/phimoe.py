"""phimoe: Phi-3.5-MoE; norms with a mean and a bias, biases on all projections, sparsemixer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import (
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
    sliding_window,
)
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    hf_experts,
    hf_rules,
    layer_rules,
)
from ftengine.models.spec import LayerSpec, ModelConfig, MoeSpec, NormSpec, RouterSpec
from ftengine.models.weight_names import Rule


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Phi-3.5-MoE model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention = read_attention(
        config,
        default_theta=1e6,
        bias=config.flag("attention_bias", False),
        window=sliding_window(config),
    )
    router = RouterSpec(
        config.size("num_local_experts", "num_experts", default=16),
        config.size("num_experts_per_tok", default=2),
        normalize=False,
        jitter=config.number("router_jitter_noise", 0.01),
    )
    moe = MoeSpec(router, config.size("intermediate_size"), config.activation())
    return read_model(
        config,
        "phimoe",
        (LayerSpec(attention, moe),) * config.num_layers(),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        norms=NormSpec(centred=True, bias=True),
        head_bias=config.flag("lm_head_bias", False),
    )


FAMILY = Family(
    name="phimoe",
    architectures=("PhimoeForCausalLM", "PhiMoEForCausalLM"),
    model_types=("phimoe",),
    gguf_archs=("phimoe",),
    read_config=read_config,
    weights=(
        *hf_rules(*hf_experts("block_sparse_moe", "w1", "w3", "w2")),
        Rule("model.norm.bias", "norm.bias"),
        Rule("lm_head.bias", "head.bias"),
        *layer_rules(
            ("input_layernorm.bias", "attn_norm.bias"),
            ("post_attention_layernorm.bias", "ffn_norm.bias"),
            ("mlp.router.weight", "router"),
        ),
    ),
    gguf_weights=(
        Rule("output_norm.bias", "norm.bias"),
        Rule("output.bias", "head.bias"),
        *gguf_layer(("attn_norm.bias", "attn_norm.bias"), ("ffn_norm.bias", "ffn_norm.bias")),
        *gguf_rules(experts=True),
    ),
    gguf_keys=(
        GgufKey("num_local_experts", "expert_count"),
        GgufKey("num_experts_per_tok", "expert_used_count"),
        GgufKey("attention_bias", "blk.0.attn_q.bias", "tensor"),
        GgufKey("lm_head_bias", "output.bias", "tensor"),
        GgufKey("rope_scaling.short_factor", "rope_factors_short.weight", "factors"),
        GgufKey("rope_scaling.long_factor", "rope_factors_long.weight", "factors"),
        GgufKey("rope_scaling.attention_factor", "rope.scaling.attn_factor", "number"),
        GgufKey(
            "rope_scaling.original_max_position_embeddings",
            "rope.scaling.original_context_length",
        ),
    ),
)
