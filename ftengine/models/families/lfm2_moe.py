"""lfm2_moe: gated short convolutions with attention between; sigmoid experts after dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import (
    EXPERT_KEYS,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    gguf_shared,
    hf_attention,
    hf_dense_mlp,
    hf_experts,
    hf_rules,
    layer_rules,
)
from ftengine.models.spec import (
    LayerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
    ShortConvSpec,
)
from ftengine.models.weight_names import Rule

_CONV, _FULL = "conv", "full_attention"


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of an LFM2 MoE model -> ModelConfig. Raises: LoadError naming the key."""
    tied = values.get("tie_word_embeddings", values.get("tie_embedding", True))
    config = Config({**values, "tie_word_embeddings": tied})
    attention = read_attention(config, default_theta=1e6, qk_norm=True)
    hidden = config.size("hidden_size")
    conv = ShortConvSpec(
        hidden, config.size("conv_L_cache", default=3), config.flag("conv_bias", False)
    )
    router = RouterSpec(
        config.size("num_experts"),
        config.size("num_experts_per_tok", default=4),
        score="sigmoid",
        normalize=config.flag("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        correction=config.flag("use_expert_bias", True),
        epsilon=1e-6,
    )
    moe = MoeSpec(router, config.size("moe_intermediate_size"))
    mlp = MlpSpec(config.size("intermediate_size"))
    num_dense = int(config.number("num_dense_layers", 2))
    kinds = config.layer_types(lambda _: _FULL, _CONV, _FULL)
    layers = (
        LayerSpec(conv if kind == _CONV else attention, mlp if number < num_dense else moe)
        for number, kind in enumerate(kinds)
    )
    eps = config.number("norm_eps", 1e-5)
    return read_model(config, "lfm2_moe", tuple(layers), norm_eps=eps)


FAMILY = Family(
    name="lfm2_moe",
    architectures=("Lfm2MoeForCausalLM",),
    model_types=("lfm2_moe",),
    gguf_archs=("lfm2moe",),
    read_config=read_config,
    weights=hf_rules(
        *hf_experts("feed_forward", "w1", "w3", "w2"),
        *hf_dense_mlp("feed_forward", "mlp", ("w1", "w3", "w2")),
        *layer_rules(
            ("feed_forward.expert_bias", "router.correction"),
            ("conv.in_proj.weight", "conv.in"),
            ("conv.in_proj.bias", "conv.in.bias"),
            ("conv.conv.weight", "conv.conv"),
            ("conv.conv.bias", "conv.conv.bias"),
            ("conv.out_proj.weight", "conv.o"),
            ("conv.out_proj.bias", "conv.o.bias"),
        ),
        norms=(("operator_norm", "attn_norm"), ("ffn_norm", "ffn_norm")),
        final_norm="model.embedding_norm",
        attention=hf_attention("out_proj", "q_layernorm", "k_layernorm"),
    ),
    gguf_weights=(
        Rule("token_embd_norm.weight", "norm"),
        *gguf_layer(
            ("shortconv.in_proj.weight", "conv.in"),
            ("shortconv.conv.weight", "conv.conv"),
            ("shortconv.out_proj.weight", "conv.o"),
        ),
        *gguf_rules(experts=True),
        *gguf_shared(),
    ),
    gguf_keys=(
        *EXPERT_KEYS,
        GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
        GgufKey("num_dense_layers", "leading_dense_block_count", "count", 0),
        GgufKey("conv_L_cache", "shortconv.l_cache"),
        GgufKey("norm_eps", "attention.layer_norm_rms_epsilon", "number"),
        GgufKey(
            "layer_types", "", "kinds", kinds=((_FULL, "attention.head_count_kv"), (_CONV, ""))
        ),
    ),
)
