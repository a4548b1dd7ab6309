"""granitemoehybrid: Granite 4; Mamba-2 with a few attention layers, experts beside a shared MLP."""

from __future__ import annotations

import math
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
from ftengine.models.families.granitemoe import GGUF_FACTORS, read_factors
from ftengine.models.families.names import (
    gguf_layer,
    gguf_mamba2,
    gguf_rules,
    gguf_shared,
    hf_rules,
    hf_stacked_experts,
    layer_rules,
)
from ftengine.models.spec import (
    AttentionSpec,
    LayerSpec,
    Mamba2Spec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
)

_MAMBA, _ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Granite 4 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention, mamba = _attention(config), _mamba(config)
    block = _feed_forward(config)
    kinds = config.layer_types(lambda _: "mamba", *_MAMBA, *_ATTENTION)
    layers = (LayerSpec(mamba if kind in _MAMBA else attention, block) for kind in kinds)
    return read_model(config, "granitemoehybrid", tuple(layers), **read_factors(config))


def _attention(config: Config) -> AttentionSpec:
    found = read_attention(config, default_theta=10000.0, bias=config.flag("attention_bias", False))
    rope = found.rope if config.values.get("position_embedding_type") == "rope" else None
    return replace(found, rope=rope, scale=config.number("attention_multiplier", 1.0))


def _mamba(config: Config) -> Mamba2Spec:
    heads = config.size("mamba_n_heads", default=128)
    width = config.size("mamba_expand", default=2) * config.size("hidden_size")
    auto = config.values.get("mamba_d_head") in (None, "auto")
    head_dim = width // heads if auto else config.size("mamba_d_head")
    groups = config.size("mamba_n_groups", default=1)
    if heads * head_dim != width or heads % groups:
        raise LoadError(
            f"config.json: mamba_n_heads {heads} of {head_dim} do not fit a width of {width} "
            f"in {groups} groups"
        )
    return Mamba2Spec(
        heads,
        head_dim,
        config.size("mamba_d_state", default=256),
        groups,
        config.size("mamba_d_conv", default=4),
        config.flag("mamba_conv_bias", True),
        config.flag("mamba_proj_bias", False),
        _limits(config.values.get("time_step_limit")),
        rates=gguf_layout(config),
    )


def _limits(value: Any) -> tuple[float, float]:
    """time_step_limit; null and absent mean none."""
    if value is None:
        return (0.0, math.inf)
    items = [_plain(item) for item in value] if isinstance(value, list) else []
    if len(items) != 2 or not all(type(item) in (int, float) for item in items):
        raise LoadError("config.json: time_step_limit must be two numbers")
    return (float(items[0]), float(items[1]))


def _plain(item: Any) -> Any:
    """A number; JSON has no infinity, so transformers writes an object for it."""
    if isinstance(item, dict) and item.get("__float__") == "Infinity":
        return math.inf
    return item


def _feed_forward(config: Config) -> MoeSpec | MlpSpec:
    activation = config.activation()
    shared = MlpSpec(
        config.size("shared_intermediate_size", default=1024),
        activation,
        fused=not gguf_layout(config),
        stem="shared",
    )
    if config.values.get("num_local_experts") == 0:
        return shared
    router = RouterSpec(
        config.size("num_local_experts", default=8), config.size("num_experts_per_tok", default=2)
    )
    return MoeSpec(router, config.size("intermediate_size"), activation, shared=shared)


FAMILY = Family(
    name="granitemoehybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    model_types=("granitemoehybrid",),
    gguf_archs=("granitehybrid",),
    read_config=read_config,
    weights=hf_rules(
        *hf_stacked_experts(),
        *layer_rules(
            ("shared_mlp.input_linear.weight", "shared.gate_up"),
            ("shared_mlp.output_linear.weight", "shared.down"),
            ("mamba.in_proj.weight", "mamba.in"),
            ("mamba.in_proj.bias", "mamba.in.bias"),
            ("mamba.conv1d.weight", "mamba.conv"),
            ("mamba.conv1d.bias", "mamba.conv.bias"),
            ("mamba.A_log", "mamba.a_log"),
            ("mamba.D", "mamba.d"),
            ("mamba.dt_bias", "mamba.dt_bias"),
            ("mamba.norm.weight", "mamba.norm"),
            ("mamba.out_proj.weight", "mamba.o"),
            ("mamba.out_proj.bias", "mamba.o.bias"),
        ),
    ),
    gguf_weights=(
        *gguf_mamba2(),
        # models without experts have the shared MLP alone
        *gguf_layer(*((f"ffn_{part}.weight", "shared." + part) for part in ("gate", "up", "down"))),
        *gguf_rules(experts=True),
        *gguf_shared(),
    ),
    gguf_keys=(
        GGUF_LAYOUT,
        *GGUF_FACTORS,
        GgufKey("num_local_experts", "expert_count", "count", 0),
        GgufKey("num_experts_per_tok", "expert_used_count"),
        GgufKey(
            "shared_intermediate_size", "expert_shared_feed_forward_length|feed_forward_length"
        ),
        GgufKey("mamba_n_heads", "ssm.time_step_rank"),
        GgufKey("mamba_d_head", "ssm.inner_size", over="ssm.time_step_rank"),
        GgufKey("mamba_d_state", "ssm.state_size"),
        GgufKey("mamba_n_groups", "ssm.group_count"),
        GgufKey("mamba_d_conv", "ssm.conv_kernel"),
        GgufKey("mamba_expand", "ssm.inner_size", over="embedding_length"),
        GgufKey(
            "layer_types",
            "",
            "kinds",
            kinds=(("attention", "attention.head_count_kv"), ("mamba", "")),
        ),
        GgufKey("", "rope.dimension_count", "ignored"),
    ),
)
