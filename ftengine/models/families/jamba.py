"""jamba: Mamba-1 with a few attention layers, no positions; experts on every second layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import (
    EXPERT_KEYS,
    GGUF_LAYOUT,
    MLP_KINDS_KEY,
    Config,
    Family,
    GgufKey,
    gguf_layout,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import dense_layers
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    hf_dense_mlp,
    hf_experts,
    hf_rules,
    layer_rules,
)
from ftengine.models.scan_specs import Mamba1Spec
from ftengine.models.spec import (
    AttentionSpec,
    LayerSpec,
    MixerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
)

_MAMBA, _ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")


def _attention(config: Config) -> AttentionSpec:
    return replace(read_attention(config, default_theta=10000.0), rope=None)


def _mamba(config: Config) -> Mamba1Spec:
    hidden = config.size("hidden_size")
    auto = config.values.get("mamba_dt_rank") in (None, "auto")
    return Mamba1Spec(
        config.size("mamba_expand", default=2) * hidden,
        config.size("mamba_d_state", default=16),
        math.ceil(hidden / 16) if auto else config.size("mamba_dt_rank"),
        config.size("mamba_d_conv", default=4),
        config.flag("mamba_conv_bias", True),
        config.flag("mamba_proj_bias", False),
        rates=gguf_layout(config),
    )


def _is_nth(config: Config, layer: int, name: str, period: int, offset: int) -> bool:
    """Whether this is a layer of a kind that comes every so many, from an offset on."""
    every = config.size(f"{name}_period", default=period)
    return layer % every == config.number(f"{name}_offset", offset)


def _with_experts(config: Config) -> tuple[bool, ...]:
    """Which layers have experts: as listed (GGUF files are read so), or every so many."""
    if config.values.get("mlp_layer_types") is not None:
        return tuple(not dense for dense in dense_layers(config, 0))
    return tuple(
        _is_nth(config, layer, "expert_layer", 2, 1) for layer in range(config.num_layers())
    )


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Jamba model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention, mamba = _attention(config), _mamba(config)
    kinds = config.layer_types(
        lambda layer: _ATTENTION[0] if _is_nth(config, layer, "attn_layer", 8, 4) else _MAMBA[0],
        *_MAMBA,
        *_ATTENTION,
    )
    width, activation = config.size("intermediate_size"), config.activation()
    router = RouterSpec(
        config.size("num_experts", default=16),
        config.size("num_experts_per_tok", default=2),
        normalize=False,
    )
    moe, mlp = MoeSpec(router, width, activation), MlpSpec(width, activation)
    layers = []
    for kind, sparse in zip(kinds, _with_experts(config), strict=True):
        mixer: MixerSpec = mamba if kind in _MAMBA else attention
        layers.append(LayerSpec(mixer, moe if sparse and router.num_experts > 1 else mlp))
    return read_model(config, "jamba", tuple(layers))


FAMILY = Family(
    name="jamba",
    architectures=("JambaForCausalLM",),
    model_types=("jamba",),
    gguf_archs=("jamba",),
    read_config=read_config,
    weights=hf_rules(
        *hf_experts("feed_forward", "gate_proj", "up_proj", "down_proj"),
        *hf_dense_mlp("feed_forward"),
        *layer_rules(
            ("feed_forward.router.weight", "router"),
            ("mamba.in_proj.weight", "mamba.in"),
            ("mamba.in_proj.bias", "mamba.in.bias"),
            ("mamba.conv1d.weight", "mamba.conv"),
            ("mamba.conv1d.bias", "mamba.conv.bias"),
            ("mamba.x_proj.weight", "mamba.x"),
            ("mamba.dt_layernorm.weight", "mamba.dt_norm"),
            ("mamba.b_layernorm.weight", "mamba.b_norm"),
            ("mamba.c_layernorm.weight", "mamba.c_norm"),
            ("mamba.dt_proj.weight", "mamba.dt"),
            ("mamba.dt_proj.bias", "mamba.dt.bias"),
            ("mamba.A_log", "mamba.a_log"),
            ("mamba.D", "mamba.d"),
            ("mamba.out_proj.weight", "mamba.o"),
            ("mamba.out_proj.bias", "mamba.o.bias"),
        ),
        norms=(("input_layernorm", "attn_norm"), ("pre_ff_layernorm", "ffn_norm")),
        final_norm="model.final_layernorm",
    ),
    gguf_weights=(
        *gguf_layer(
            ("ssm_in.weight", "mamba.in"),
            ("ssm_conv1d.weight", "mamba.conv"),
            ("ssm_conv1d.bias", "mamba.conv.bias"),
            ("ssm_x.weight", "mamba.x"),
            ("ssm_dt_norm.weight", "mamba.dt_norm"),
            ("ssm_b_norm.weight", "mamba.b_norm"),
            ("ssm_c_norm.weight", "mamba.c_norm"),
            ("ssm_dt.weight", "mamba.dt"),
            ("ssm_dt.bias", "mamba.dt.bias"),
            ("ssm_a", "mamba.rate"),
            ("ssm_d", "mamba.d"),
            ("ssm_out.weight", "mamba.o"),
        ),
        *gguf_rules(experts=True),
    ),
    gguf_keys=(
        GGUF_LAYOUT,
        *EXPERT_KEYS,
        GgufKey("mamba_expand", "ssm.inner_size", over="embedding_length"),
        GgufKey("mamba_d_state", "ssm.state_size"),
        GgufKey("mamba_d_conv", "ssm.conv_kernel"),
        GgufKey("mamba_dt_rank", "ssm.time_step_rank"),
        GgufKey(
            "layer_types",
            "",
            "kinds",
            kinds=((_ATTENTION[0], "attention.head_count_kv"), (_MAMBA[0], "")),
        ),
        MLP_KINDS_KEY,
    ),
)
