"""llama4: Scout and Maverick, text; attention in chunks, every fourth layer without positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
    text_config,
)
from ftengine.models.families.names import (
    LAYER,
    gguf_rules,
    gguf_shared,
    hf_dense_mlp,
    hf_rules,
    layer_rules,
    wrapped,
)
from ftengine.models.spec import (
    AttentionSpec,
    HeadNorm,
    LayerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
)
from ftengine.models.weight_names import Rule


def _mixers(config: Config) -> tuple[AttentionSpec, ...]:
    plain = read_attention(
        config, default_theta=500000.0, bias=config.flag("attention_bias", False)
    )
    assert plain.rope is not None
    chunk = config.values.get("attention_chunk_size", 8192)
    turned = replace(
        plain,
        rope=replace(plain.rope, style="interleaved"),
        qk_norm=config.flag("use_qk_norm", True),
        norm=HeadNorm(late=True, free=True),
        chunk=0 if chunk is None else config.size("attention_chunk_size", default=8192),
    )
    if turned.chunk % 16:
        raise LoadError(
            f"config.json: attention_chunk_size {turned.chunk} is not a multiple of 16 tokens"
        )
    still = replace(plain, rope=None)
    if config.values.get("attn_temperature_tuning", True):
        beta, old = config.number("attn_scale", 0.1), config.number("floor_scale", 8192)
        still = replace(still, temper=(beta, old))
    return tuple(turned if used else still for used in _rotates(config))


def _rotates(config: Config) -> tuple[bool, ...]:
    """Which layers turn q and k. The checkpoints' no_rope_layers says 1 where they do."""
    count, listed = config.num_layers(), config.values.get("no_rope_layers")
    if listed:
        if not isinstance(listed, list) or len(listed) != count:
            raise LoadError(f"config.json: no_rope_layers must list {count} layers")
        return tuple(bool(item) for item in listed)
    every = config.size("no_rope_layer_interval", default=4)
    return tuple((layer + 1) % every != 0 for layer in range(count))


def _sparse(config: Config) -> tuple[bool, ...]:
    count, listed = config.num_layers(), config.values.get("moe_layers")
    if listed is not None:
        if not isinstance(listed, list):
            raise LoadError("config.json: moe_layers must be a list of layers")
        return tuple(layer in listed for layer in range(count))
    every = config.size("interleave_moe_layer_step", default=1)
    return tuple((layer + 1) % every == 0 for layer in range(count))


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Llama 4 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(text_config(values))
    top = config.size("num_experts_per_tok", default=1)
    if top != 1:
        raise LoadError(f"config.json: num_experts_per_tok {top} is not built yet; built: 1")
    router = RouterSpec(
        config.size("num_local_experts", "num_experts", default=16),
        top,
        score="sigmoid",
        normalize=False,
    )
    width, activation = config.size("intermediate_size"), config.activation()
    shared = MlpSpec(width, activation, stem="shared")
    moe = MoeSpec(router, width, activation, shared=shared, weigh_input=True)
    sparse = _sparse(config)
    mlp = None
    if not all(sparse):
        mlp = MlpSpec(config.size("intermediate_size_mlp"), activation)
    layers = tuple(
        LayerSpec(mixer, moe if is_sparse or mlp is None else mlp)
        for mixer, is_sparse in zip(_mixers(config), sparse, strict=True)
    )
    return read_model(config, "llama4", layers, norm_eps=config.number("rms_norm_eps", 1e-5))


_STEM, _TARGET = LAYER + "feed_forward.", "layers.{layer}.experts"

FAMILY = Family(
    name="llama4",
    architectures=("Llama4ForConditionalGeneration", "Llama4ForCausalLM"),
    model_types=("llama4", "llama4_text"),
    gguf_archs=("llama4",),
    read_config=read_config,
    weights=wrapped(
        hf_rules(
            Rule(_STEM + "experts.gate_up_proj", _TARGET, "gate_up", "columns"),
            Rule(_STEM + "experts.down_proj", _TARGET, "down", "columns"),
            *layer_rules(("feed_forward.router.weight", "router")),
            *hf_dense_mlp("feed_forward.shared_expert", "shared"),
            *hf_dense_mlp("feed_forward"),
        )
    ),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared()),
    gguf_keys=(
        GgufKey("num_local_experts", "expert_count"),
        GgufKey("num_experts_per_tok", "expert_used_count"),
        GgufKey("intermediate_size", "expert_feed_forward_length"),
        GgufKey("intermediate_size_mlp", "feed_forward_length"),
        GgufKey("interleave_moe_layer_step", "interleave_moe_layer_step"),
        # files do not say it; Maverick alone has no norms on q and k
        GgufKey("use_qk_norm", "", default=False, only=("expert_count", 128)),
    ),
)
