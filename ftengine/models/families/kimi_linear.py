"""kimi_linear: three layers of delta attention to one of latent attention without positions."""

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
    read_model,
)
from ftengine.models.families.latent import LATENT_GGUF_KEYS, hf_latent, read_latent, stack
from ftengine.models.families.names import (
    gguf_latent,
    gguf_layer,
    hf_dense_mlp,
    hf_experts,
    hf_rules,
    layer_rules,
)
from ftengine.models.families.windowed import shared_experts
from ftengine.models.scan_specs import KdaSpec
from ftengine.models.spec import MixerSpec, ModelConfig, MoeSpec, RouterSpec
from ftengine.models.weight_names import Rule

LINEAR, FULL = "linear_attention", "full_attention"


def _mixers(config: Config) -> tuple[MixerSpec, ...]:
    nested = config.values.get("linear_attn_config")
    nested = nested if isinstance(nested, dict) else {}
    own = Config(
        {
            "linear_num_heads": nested.get("num_heads"),
            "linear_head_dim": nested.get("head_dim"),
            "linear_conv_kernel_dim": nested.get("short_conv_kernel_size"),
            **{k: v for k, v in config.values.items() if k.startswith("linear_") and v},
        }
    )
    dim = own.size("linear_head_dim", default=128)
    kda = KdaSpec(
        own.size("linear_num_heads", default=32),
        dim,
        own.size("linear_conv_kernel_dim", default=4),
        rank=dim,
        rates=gguf_layout(config),
    )
    latent = read_latent(config)
    latent = replace(latent, rope=None, scale=latent.head_dim**-0.5)
    full = nested.get("full_attn_layers") or []
    if not isinstance(full, list):
        raise LoadError("config.json: full_attn_layers must be a list of layers, counted from 1")

    def kind(layer: int) -> str:
        if full:
            return FULL if layer + 1 in full else LINEAR
        return LINEAR if (layer + 1) % 4 else FULL

    kinds = config.layer_types(kind, LINEAR, FULL)
    return tuple(kda if item == LINEAR else latent for item in kinds)


def read_linear_moe(config: Config, default_scale: float) -> MoeSpec:
    """Sigmoid router with a correction and groups under this family's names of keys."""
    groups = config.size("num_expert_group", default=1)
    router = RouterSpec(
        config.size("num_experts", "n_routed_experts"),
        config.size("num_experts_per_token", "num_experts_per_tok", default=8),
        score="sigmoid",
        normalize=config.flag("moe_renormalize", True),
        scale=config.number("routed_scaling_factor", default_scale),
        correction=True,
        groups=groups,
        kept_groups=config.size("topk_group", default=groups),
    )
    width = config.size("moe_intermediate_size")
    shared = shared_experts(config, "num_shared_experts", width, 1)
    return MoeSpec(router, width, config.activation(), shared=shared)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Kimi-Linear model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    if not config.flag("mla_use_nope", True):
        raise LoadError("config.json: mla_use_nope false is not built yet")
    layers = stack(config, _mixers(config), read_linear_moe(config, 2.446), default_first=1)
    return read_model(
        config,
        "kimi_linear",
        layers,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        context_tokens=config.size("model_max_length", "max_position_embeddings", default=1048576),
    )


def hf_kda(prefix: str, out: str) -> tuple[Rule, ...]:
    """Kimi delta attention; names that latent attention has too stand for either."""
    shared = [
        ("q_proj", "kda.q", "mla.q"),
        (out, "kda.o", "mla.o"),
        ("g_proj", "kda.g", "mla.gate"),
    ]
    rules = [
        Rule(
            f"model.layers.{{layer}}.{prefix}.{name}.weight",
            "layers.{layer}." + ours + "|layers.{layer}." + theirs,
        )
        for name, ours, theirs in shared
    ]
    pairs = [(f"{name}_conv1d.weight", f"kda.{name}_conv") for name in "qkv"]
    pairs += [(f"{name}_proj.weight", f"kda.{name}") for name in "kvbf"]
    pairs += [
        (f"{name}_{half}_proj.weight", f"kda.{name}_{half}") for name in "fg" for half in "ab"
    ]
    pairs += [("A_log", "kda.a_log"), ("dt_bias", "kda.dt_bias"), ("o_norm.weight", "kda.norm")]
    rules += layer_rules(*((f"{prefix}.{name}", ours) for name, ours in pairs))
    kept = [rule for rule in hf_latent(prefix) if not rule.source.endswith((".q_proj.weight", out))]
    return (*rules, *(rule for rule in kept if rule.target != "layers.{layer}.mla.o"))


def gguf_kda(*gates: tuple[str, str]) -> tuple[Rule, ...]:
    """q, k, v and o of delta attention have the names of attention. gates: those of decays too."""
    either = [("attn_q", "kda.q|layers.{layer}.mla.q"), ("attn_k", "kda.k"), ("attn_v", "kda.v")]
    either.append(("attn_output", "kda.o|layers.{layer}.mla.o"))
    either += [(f"ssm_conv1d_{name}", f"kda.{name}_conv") for name in "qkv"]
    either += [*gates, ("ssm_beta", "kda.b"), ("ssm_norm", "kda.norm")]
    own = [(f"{name}.weight", ours) for name, ours in either]
    return (
        *gguf_layer(*own, ("ssm_a", "kda.rate"), ("ssm_dt.bias", "kda.dt_bias")),
        *gguf_latent(),
    )


LINEAR_GGUF_KEYS = (
    GGUF_LAYOUT,
    *LATENT_GGUF_KEYS,
    GgufKey("num_experts", "expert_count"),
    GgufKey("num_experts_per_token", "expert_used_count"),
    GgufKey("num_shared_experts", "expert_shared_count", "count", 0),
    GgufKey("num_expert_group", "expert_group_count", "count", 1),
    GgufKey("linear_num_heads", "attention.head_count"),
    GgufKey("linear_head_dim", "kda.head_dim"),
    GgufKey("linear_conv_kernel_dim", "ssm.conv_kernel"),
    GgufKey(
        "layer_types",
        "",
        "kinds",
        kinds=((FULL, "attention.head_count_kv"), (LINEAR, "")),
    ),
)

FAMILY = Family(
    name="kimi_linear",
    architectures=("KimiLinearForCausalLM",),
    model_types=("kimi_linear",),
    gguf_archs=("kimi-linear",),
    read_config=read_config,
    weights=hf_rules(
        *hf_experts("block_sparse_moe", "w1", "w3", "w2"),
        *hf_dense_mlp("block_sparse_moe.shared_experts", "shared"),
        *layer_rules(("block_sparse_moe.gate.e_score_correction_bias", "router.correction")),
        *hf_dense_mlp(),
        *hf_dense_mlp("block_sparse_moe"),
        attention=hf_kda("self_attn", "o_proj"),
    ),
    gguf_weights=gguf_kda(
        *((f"ssm_{name}_{half}", f"kda.{name}_{half}") for name in "fg" for half in "ab")
    ),
    gguf_keys=LINEAR_GGUF_KEYS,
)
