"""bailing_hybrid: Ling and Ring hybrids; delta attention with bounded decays, gated latent one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    Config,
    Family,
    GgufKey,
    gguf_layout,
    read_model,
)
from ftengine.models.families.kimi_linear import (
    FULL,
    LINEAR,
    LINEAR_GGUF_KEYS,
    gguf_kda,
    hf_kda,
    read_linear_moe,
)
from ftengine.models.families.latent import drafting_notes, hf_moe, read_latent, stack
from ftengine.models.families.names import hf_rules, layer_rules
from ftengine.models.scan_specs import KdaSpec
from ftengine.models.spec import Activation, LayerSpec, MixerSpec, ModelConfig, MoeSpec
from ftengine.models.weight_names import Rule

_USUAL_KEYS = (("num_expert_group", "n_group"), ("moe_renormalize", "norm_topk_prob"))
"""Settings for which some releases use the names of most families."""
_LIMIT_KEYS = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")


def _mixers(config: Config) -> tuple[MixerSpec, ...]:
    if not config.flag("kda_safe_gate", True):
        raise LoadError("config.json: kda_safe_gate false is not built yet")
    bound = config.number("kda_lower_bound", -5.0)
    if bound >= 0:
        raise LoadError(f"config.json: kda_lower_bound must be below 0, got {bound}")
    kda = KdaSpec(
        config.size("linear_num_heads", "num_attention_heads"),
        config.size("linear_head_dim", "head_dim", default=128),
        config.size("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
        bound=bound,
        rates=gguf_layout(config),
    )
    latent = replace(read_latent(config), gate=True)
    every = config.size("layer_group_size", default=6)
    kinds = config.layer_types(lambda layer: LINEAR if (layer + 1) % every else FULL, LINEAR, FULL)
    return tuple(kda if kind == LINEAR else latent for kind in kinds)


def _limits(config: Config, key: str) -> tuple[float, ...]:
    """What a layer's activations are clamped to, 0 = not. Raises: LoadError naming the key."""
    count, given = config.num_layers(), config.values.get(key)
    if given is None:
        return (0.0,) * count
    found = [item or 0 for item in given[:count]] if isinstance(given, list) else []
    if len(found) < count or any(type(n) not in (int, float) or n < 0 for n in found):
        raise LoadError(f"config.json: {key} must hold a limit or null for {count} layers")
    return tuple(map(float, found))


def _limited(layer: LayerSpec, limits: tuple[float, float]) -> LayerSpec:
    """The layer with the limits of routed and of shared experts."""
    moe = layer.feed_forward
    if not isinstance(moe, MoeSpec):
        return layer
    routed, together = limits
    if routed:
        moe = replace(moe, activation=Activation("silu_clamp", limit=routed))
    if together and moe.shared is not None:
        clamped = replace(moe.shared, activation=Activation("silu_clamp", limit=together))
        moe = replace(moe, shared=clamped)
    return replace(layer, feed_forward=moe)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Ling hybrid -> ModelConfig. Raises: LoadError naming the key."""
    usual = {ours: values.get(theirs) for ours, theirs in _USUAL_KEYS}
    config = Config(usual | dict(values))
    if values.get("mrope_section"):
        raise LoadError("config.json: mrope_section is not built yet; use the release without it")
    layers = stack(config, _mixers(config), read_linear_moe(config, 2.5), default_first=2)
    limits = zip(*(_limits(config, key) for key in _LIMIT_KEYS), strict=True)
    return read_model(
        config,
        "bailing_hybrid",
        tuple(map(_limited, layers, limits)),
        context_tokens=config.size("model_max_length", "max_position_embeddings", default=262144),
        notes=drafting_notes(values),
    )


FAMILY = Family(
    name="bailing_hybrid",
    architectures=("BailingHybridForCausalLM", "BailingMoeV3ForCausalLM"),
    model_types=("bailing_hybrid",),
    gguf_archs=("bailingmoe3",),
    read_config=read_config,
    weights=(
        *hf_rules(*hf_moe(), attention=hf_kda("attention", "dense")),
        Rule("model.word_embeddings.weight", "embed"),
        *layer_rules(("mlp.gate.expert_bias", "router.correction")),
    ),
    gguf_weights=gguf_kda(("attn_gate", "mla.gate"), ("ssm_f_a", "kda.f"), ("ssm_g_a", "kda.g")),
    gguf_keys=(
        *LINEAR_GGUF_KEYS,
        GgufKey("moe_renormalize", "expert_weights_norm", "flag", False),
        GgufKey("kda_safe_gate", "kda.safe_gate", "flag", True),
        GgufKey("kda_lower_bound", "kda.gate_lower_bound", "number"),
        GgufKey("mrope_section", "rope.dimension_sections", "list"),
        GgufKey(_LIMIT_KEYS[0], "swiglu_clamp_exp", "list"),
        GgufKey(_LIMIT_KEYS[1], "swiglu_clamp_shexp", "list"),
    ),
)
