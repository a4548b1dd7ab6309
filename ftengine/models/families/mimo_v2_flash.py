"""mimo_v2_flash: windowed layers with sinks and twice the keys; values shorter than keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    MLP_KINDS_KEY,
    ROTATED_KEY,
    ROUTED_KEYS,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import hf_moe, read_moe, read_router, stack
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    gguf_shared,
    hf_rules,
    layer_rules,
)
from ftengine.models.families.windowed import KINDS_KEY, PATTERN
from ftengine.models.spec import AttentionSpec, ModelConfig, RopeSpec, ValueSpec

_WINDOWED, _FULL = "sliding_attention", "full_attention"
_PARTIAL = 0.334


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a MiMo-V2-Flash model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    full = _full_attention(config)
    windowed = replace(
        full,
        num_kv_heads=_windowed_kv_heads(config, full),
        rope=_rope(config, _WINDOWED, full.head_dim),
        window=_window(config),
        sinks=True,
    )
    kinds = _kinds(config)
    mixers = tuple(windowed if kind == _WINDOWED else full for kind in kinds)
    moe = read_moe(config, read_router(config, default_scale=1.0))
    return read_model(
        config,
        "mimo_v2_flash",
        stack(_with_dense(config), mixers, moe, default_first=1),
        norm_eps=config.number("rms_norm_eps", config.number("layernorm_epsilon", 1e-5)),
    )


def _full_attention(config: Config) -> AttentionSpec:
    plain = Config({**config.values, "rope_parameters": None, "rope_scaling": None})
    attention = read_attention(
        plain,
        default_theta=5e6,
        bias=config.flag("attention_bias", False),
        default_partial=_PARTIAL,
    )
    dim = config.size("v_head_dim", default=attention.head_dim)
    if dim > attention.head_dim:
        raise LoadError(f"config.json: v_head_dim {dim} above head_dim is not built")
    scale = 1.0
    if config.values.get("attention_value_scale", 0.707) is not None:
        scale = config.number("attention_value_scale", 0.707)
    values = ValueSpec(dim if dim != attention.head_dim else 0, scale)
    rope = _rope(config, _FULL, attention.head_dim)
    return replace(attention, rope=rope, out_bias=False, values=values)


def _windowed_kv_heads(config: Config, full: AttentionSpec) -> int:
    """Twice as many as full layers have, unless the config says otherwise."""
    count = config.size("swa_num_key_value_heads", default=2 * full.num_kv_heads)
    if full.num_heads % count:
        raise LoadError(f"config.json: {full.num_heads} heads do not share {count} keys")
    return count


def _window(config: Config) -> int:
    """The library's key counts the token itself, the hub's only those before it."""
    if config.values.get("sliding_window_size") is not None:
        return config.size("sliding_window_size") + 1
    return config.size("sliding_window", default=129)


def _rope(config: Config, kind: str, head_dim: int) -> RopeSpec:
    both = config.values.get("rope_parameters")
    if isinstance(both, dict) and isinstance(both.get(kind), dict):
        return config.rope_of(both[kind], head_dim, 1e4, _PARTIAL)
    partial = config.number("partial_rotary_factor", _PARTIAL)
    theta = config.number("rope_theta", 5e6)
    if kind == _WINDOWED:
        theta = config.number("swa_rope_theta", 1e4)
    return config.rope_of({"rope_theta": theta, "partial_rotary_factor": partial}, head_dim, theta)


def _kinds(config: Config) -> tuple[str, ...]:
    """layer_types, or the hub's pattern, in which 1 is a window."""
    pattern = config.values.get("hybrid_layer_pattern")
    if config.values.get("layer_types") is None and pattern is not None:
        if not isinstance(pattern, list) or {*pattern} - {0, 1}:
            raise LoadError("config.json: hybrid_layer_pattern must be a list of 0 and 1")
        kinds = [_WINDOWED if item else _FULL for item in pattern]
        config = Config({**config.values, "layer_types": kinds})

    def usual(layer: int) -> str:
        return _FULL if layer == 0 or (layer + 1) % 6 == 0 else _WINDOWED

    return config.layer_types(usual, _WINDOWED, _FULL)


def _with_dense(config: Config) -> Config:
    """The hub lists 0 and 1 for layers without and with experts."""
    given = config.values.get("moe_layer_freq")
    if not isinstance(given, list):
        return config
    kinds = ["sparse" if item else "dense" for item in given]
    return Config({**config.values, "mlp_layer_types": kinds, "moe_layer_freq": None})


FAMILY = Family(
    name="mimo_v2_flash",
    architectures=("MiMoV2FlashForCausalLM",),
    model_types=("mimo_v2_flash",),
    gguf_archs=("mimo2",),
    read_config=read_config,
    weights=hf_rules(
        *hf_moe(),
        *layer_rules(("self_attn.attention_sink_bias", "attn.sinks")),
    ),
    gguf_weights=(
        *gguf_layer(("attn_sinks.weight", "attn.sinks")),
        *gguf_rules(experts=True),
        *gguf_shared(),
    ),
    gguf_keys=(
        *ROUTED_KEYS,
        ROTATED_KEY,
        KINDS_KEY,
        GgufKey("sliding_window_size", "attention.sliding_window"),
        GgufKey("num_key_value_heads", "attention.head_count_kv", where=(PATTERN, False)),
        GgufKey("swa_num_key_value_heads", "attention.head_count_kv", where=(PATTERN, True)),
        GgufKey("v_head_dim", "attention.value_length"),
        GgufKey("attention_value_scale", "attention.value_scale", "number", 1.0),
        GgufKey("swa_rope_theta", "rope.freq_base_swa", "number"),
        MLP_KINDS_KEY,
    ),
)
