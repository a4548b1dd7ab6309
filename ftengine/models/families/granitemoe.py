"""granitemoe: Granite 3 with experts; four plain factors. granitemoeshared adds a shared MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    GGUF_LAYOUT,
    Config,
    Family,
    GgufKey,
    gguf_layout,
    read_attention,
    read_model,
)
from ftengine.models.families.names import (
    gguf_rules,
    gguf_shared,
    hf_rules,
    hf_stacked_experts,
    layer_rules,
)
from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig, MoeSpec, RouterSpec

_SHARED = "granitemoeshared"


def read_factors(config: Config) -> dict[str, float]:
    """What multiplies embeddings, outputs of blocks and logits. Raises: LoadError."""
    scaling = config.number("logits_scaling", 1.0)
    if scaling <= 0:
        raise LoadError("config.json: logits_scaling must be above 0")
    return {
        "embedding_scale": config.number("embedding_multiplier", 1.0),
        "residual_scale": config.number("residual_multiplier", 1.0),
        "logit_scale": 1.0 / scaling,
    }


def _read(values: Mapping[str, Any], family: str) -> ModelConfig:
    config = Config(values)
    attention = read_attention(
        config, default_theta=10000.0, bias=config.flag("attention_bias", False)
    )
    attention = replace(attention, scale=config.number("attention_multiplier", 1.0))
    activation = config.activation()
    router = RouterSpec(
        config.size("num_local_experts", default=8), config.size("num_experts_per_tok", default=2)
    )
    shared = None
    if family == _SHARED and config.values.get("shared_intermediate_size"):
        width = config.size("shared_intermediate_size")
        shared = MlpSpec(width, activation, fused=not gguf_layout(config), stem="shared")
    moe = MoeSpec(router, config.size("intermediate_size"), activation, shared=shared)
    layers = (LayerSpec(attention, moe),) * config.num_layers()
    return read_model(config, family, layers, **read_factors(config))


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Granite 3 MoE model -> ModelConfig. Raises: LoadError naming the key."""
    return _read(values, "granitemoe")


def read_shared_config(values: Mapping[str, Any]) -> ModelConfig:
    """The same with a shared MLP. Raises: LoadError naming the key."""
    return _read(values, _SHARED)


GGUF_FACTORS = (
    GgufKey("attention_multiplier", "attention.scale", "number"),
    GgufKey("embedding_multiplier", "embedding_scale", "number"),
    GgufKey("residual_multiplier", "residual_scale", "number"),
    GgufKey("logits_scaling", "logit_scale", "number"),
)
_GGUF_KEYS = (
    GgufKey("num_local_experts", "expert_count"),
    GgufKey("num_experts_per_tok", "expert_used_count"),
    *GGUF_FACTORS,
)

FAMILY = Family(
    name="granitemoe",
    architectures=("GraniteMoeForCausalLM",),
    model_types=("granitemoe",),
    gguf_archs=("granitemoe",),
    read_config=read_config,
    weights=hf_rules(*hf_stacked_experts()),
    gguf_weights=gguf_rules(experts=True),
    gguf_permuted=True,
    gguf_keys=_GGUF_KEYS,
    gguf_only=(("expert_shared_feed_forward_length", (None, 0)),),
)

SHARED = Family(
    name=_SHARED,
    architectures=("GraniteMoeSharedForCausalLM",),
    model_types=("granitemoeshared",),
    gguf_archs=("granitemoe",),
    read_config=read_shared_config,
    weights=hf_rules(
        *hf_stacked_experts(),
        *layer_rules(
            ("shared_mlp.input_linear.weight", "shared.gate_up"),
            ("shared_mlp.output_linear.weight", "shared.down"),
        ),
    ),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared()),
    gguf_permuted=True,
    gguf_keys=(
        GGUF_LAYOUT,
        *_GGUF_KEYS,
        GgufKey("shared_intermediate_size", "expert_shared_feed_forward_length"),
    ),
)
