"""ernie4_5_moe: ERNIE 4.5; pairs side by side in the rope, softmax router with a correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Config, Family, GgufKey, read_attention, read_model
from ftengine.models.families.latent import hf_moe
from ftengine.models.families.names import gguf_rules, gguf_shared, hf_rules, layer_rules
from ftengine.models.families.windowed import shared_experts
from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig, MoeSpec, RouterSpec


def _sparse_layers(config: Config) -> tuple[bool, ...]:
    count = config.num_layers()
    first = config.values.get("moe_layer_start_index", 1)
    last = config.values.get("moe_layer_end_index", count - 1)
    if type(first) is not int or type(last) is not int:
        raise LoadError("config.json: moe_layer_start_index and _end_index must be numbers")
    last = count - 1 if last == -1 else last
    every = config.size("moe_layer_interval", default=1)
    return tuple((layer + 1) % every == 0 and first <= layer <= last for layer in range(count))


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of an ERNIE 4.5 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    if config.flag("use_bias", False):
        raise LoadError("config.json: use_bias true is not built yet")
    attention = read_attention(config, default_theta=500000.0)
    assert attention.rope is not None
    attention = replace(attention, rope=replace(attention.rope, style="interleaved"))
    router = RouterSpec(
        config.size("moe_num_experts", "num_experts", "num_local_experts"),
        config.size("moe_k", "num_experts_per_tok", default=6),
        correction=True,
    )
    width = config.size("moe_intermediate_size")
    shared = shared_experts(config, "moe_num_shared_experts", width, 0)
    moe = MoeSpec(router, width, config.activation(), shared=shared)
    mlp = MlpSpec(config.size("intermediate_size"), config.activation())
    layers = tuple(LayerSpec(attention, moe if s else mlp) for s in _sparse_layers(config))
    return read_model(
        config,
        "ernie4_5_moe",
        layers,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        tied_head=config.flag("tie_word_embeddings", True),
    )


FAMILY = Family(
    name="ernie4_5_moe",
    architectures=("Ernie4_5_MoeForCausalLM",),
    model_types=("ernie4_5_moe",),
    gguf_archs=("ernie4_5-moe",),
    read_config=read_config,
    weights=hf_rules(
        *hf_moe(),
        *layer_rules(
            ("mlp.moe_statics.e_score_correction_bias", "router.correction"),
            ("mlp.gate.moe_statics.e_score_correction_bias", "router.correction"),
        ),
    ),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared()),
    gguf_keys=(
        GgufKey("moe_num_experts", "expert_count"),
        GgufKey("moe_k", "expert_used_count"),
        GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
        GgufKey("moe_num_shared_experts", "expert_shared_count", "count", 0),
        GgufKey("moe_layer_start_index", "leading_dense_block_count", "count", 0),
        GgufKey("moe_layer_interval", "interleave_moe_layer_step"),
    ),
)
