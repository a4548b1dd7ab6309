"""olmoe: attention whose q and k are normalised over all heads at once; softmax experts."""

from __future__ import annotations

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
from ftengine.models.families.names import gguf_rules, hf_experts, hf_rules
from ftengine.models.spec import (
    AttentionSpec,
    HeadNorm,
    LayerSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
)


def read_whole_norm_attention(config: Config, default_theta: float) -> AttentionSpec:
    """Attention with one norm over all heads of q, and one over those of k."""
    found = read_attention(
        config,
        default_theta=default_theta,
        qk_norm=True,
        bias=config.flag("attention_bias", False),
    )
    return replace(found, norm=HeadNorm(whole=True))


def read_softmax_moe(config: Config, default_experts: int, default_top: int) -> MoeSpec:
    """Experts as wide as intermediate_size; weights add up only if norm_topk_prob says so."""
    router = RouterSpec(
        config.size("num_experts", "num_local_experts", default=default_experts),
        config.size("num_experts_per_tok", default=default_top),
        normalize=config.flag("norm_topk_prob", False),
    )
    return MoeSpec(router, config.size("intermediate_size"), config.activation())


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of an OLMoE model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention = replace(
        read_whole_norm_attention(config, 10000.0), clip=config.number("clip_qkv", 0.0)
    )
    layer = LayerSpec(attention, read_softmax_moe(config, 64, 8))
    return read_model(
        config,
        "olmoe",
        (layer,) * config.num_layers(),
        norm_eps=config.number("rms_norm_eps", 1e-5),
    )


FAMILY = Family(
    name="olmoe",
    architectures=("OlmoeForCausalLM",),
    model_types=("olmoe",),
    gguf_archs=("olmoe",),
    read_config=read_config,
    weights=hf_rules(*hf_experts("mlp", "gate_proj", "up_proj", "down_proj")),
    gguf_weights=gguf_rules(experts=True),
    gguf_keys=(*EXPERT_KEYS, GgufKey("clip_qkv", "attention.clamp_kqv", "number")),
)
