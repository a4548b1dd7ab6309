"""gemma4: windowed and full layers of different heads; an MLP and experts side by side, or an MLP.

The small models with embeddings of their own in every layer are not built.
"""

from __future__ import annotations

import math
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
    gguf_layer,
    gguf_rules,
    hf_dense_mlp,
    hf_rules,
    layer_rules,
    wrapped,
)
from ftengine.models.families.windowed import PATTERN, WINDOW_KEYS
from ftengine.models.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RopeSpec,
    RouterSpec,
    TwinSpec,
    ValueSpec,
)
from ftengine.models.weight_names import Rule

_WINDOWED, _FULL = "sliding_attention", "full_attention"
_DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262144,
    "max_position_embeddings": 131072,
    "hidden_activation": "gelu_pytorch_tanh",
}
_NOT_BUILT = ("hidden_size_per_layer_input", "num_kv_shared_layers", "use_bidirectional_attention")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Gemma 4 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(_DEFAULTS | text_config(values))
    for key in _NOT_BUILT:
        if config.values.get(key) not in (None, 0, "vision"):
            raise LoadError(
                f"config.json: {key} {config.values[key]!r} is not built yet; the 26B and 31B "
                "models do without it"
            )
    windowed, full = _attention(config)
    mlp = MlpSpec(config.size("intermediate_size"), config.activation("hidden_activation"))
    block: FeedForwardSpec = mlp
    if config.flag("enable_moe_block", False):
        block = TwinSpec(mlp, _moe(config))
    kinds = config.layer_types(lambda i: _WINDOWED if (i + 1) % 6 else _FULL, _WINDOWED, _FULL)
    layers = (
        LayerSpec(windowed if kind == _WINDOWED else full, block, post_norms=True, scaled=True)
        for kind in kinds
    )
    cap = config.values.get("final_logit_softcapping")
    return read_model(
        config,
        "gemma4",
        tuple(layers),
        tied_head=config.flag("tie_word_embeddings", True),
        embedding_scale=math.sqrt(config.size("hidden_size")),
        logit_softcap=0.0 if cap is None else config.number("final_logit_softcapping", 0.0),
    )


def _attention(config: Config) -> tuple[AttentionSpec, AttentionSpec]:
    """Of windowed and of full layers."""
    plain = Config({**config.values, "rope_parameters": None, "rope_scaling": None})
    bias = config.flag("attention_bias", False)
    found = read_attention(plain, default_theta=1e4, qk_norm=True, bias=bias)
    windowed = replace(
        found,
        scale=1.0,
        rope=_rope(config, _WINDOWED, found.head_dim),
        window=config.size("sliding_window", default=512),
        values=ValueSpec(norm=True),
    )
    head_dim, kv_heads = _full_heads(config)
    if found.num_heads % kv_heads:
        raise LoadError(f"config.json: {found.num_heads} heads do not share {kv_heads} keys")
    full = replace(
        windowed,
        head_dim=head_dim,
        num_kv_heads=kv_heads,
        rope=_rope(config, _FULL, head_dim),
        window=0,
        values=ValueSpec(norm=True, of_keys=config.flag("attention_k_eq_v", False)),
    )
    return windowed, full


def _full_heads(config: Config) -> tuple[int, int]:
    """(head_dim, kv heads) of full layers, from either dialect."""
    given = dict(config.values)
    each = given.get("per_layer_config")
    others = [item for item in each.values() if item] if isinstance(each, dict) else []
    if others and isinstance(others[0], dict):
        given["global_head_dim"] = others[0].get("head_dim")
        given["num_global_key_value_heads"] = others[0].get("num_key_value_heads")
    found = Config(given)
    return (
        found.size("global_head_dim", "head_dim"),
        found.size("num_global_key_value_heads", "num_key_value_heads"),
    )


def _rope(config: Config, kind: str, head_dim: int) -> RopeSpec:
    both = config.values.get("rope_parameters")
    found = both.get(kind) if isinstance(both, dict) else None
    if not isinstance(found, dict):
        found = {"rope_theta": config.number("rope_local_base_freq", 1e4)}
        if kind == _FULL:
            partial = config.number("partial_rotary_factor", 0.25)
            found = {
                "rope_theta": config.number("rope_theta", 1e6),
                "rope_type": "proportional",
                "partial_rotary_factor": partial,
            }
    if found.get("rope_type") != "proportional":
        return config.rope_of(found, head_dim, 1e4)
    numbers = Config(found)
    partial = numbers.number("partial_rotary_factor", 1.0)
    theta = numbers.number("rope_theta", 1e6)
    return RopeSpec(head_dim, theta, scaling="proportional", factors=(("partial", partial),))


def _moe(config: Config) -> MoeSpec:
    router = RouterSpec(
        config.size("num_experts"),
        config.size("top_k_experts", "num_experts_per_tok"),
        input_norm=True,
        expert_scale=True,
    )
    width = config.size("moe_intermediate_size")
    return MoeSpec(router, width, config.activation("hidden_activation"))


_NORMS = (
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "attn_post_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm_1", "ffn_post_norm_1"),
    ("pre_feedforward_layernorm_2", "ffn_norm_2"),
    ("post_feedforward_layernorm_2", "ffn_post_norm_2"),
    ("post_feedforward_layernorm", "ffn_post_norm"),
)


def _experts() -> tuple[Rule, ...]:
    """All experts in one tensor, or each by itself as quantised releases have them."""
    stem, target = LAYER + "experts.", "layers.{layer}.experts"
    rules = [
        Rule(stem + "gate_up_proj", target, "gate_up"),
        Rule(stem + "down_proj", target, "down"),
    ]
    for part in ("gate", "up", "down"):
        rules.append(Rule(f"{stem}{{expert}}.{part}_proj.weight", target, part))
    return tuple(rules)


FAMILY = Family(
    name="gemma4",
    architectures=("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"),
    model_types=("gemma4_text", "gemma4"),
    gguf_archs=("gemma4",),
    read_config=read_config,
    weights=wrapped(
        hf_rules(
            *hf_dense_mlp(),
            *_experts(),
            *layer_rules(
                ("router.scale", "router.norm"),
                ("router.proj.weight", "router"),
                ("router.per_expert_scale", "router.expert_scale"),
                ("layer_scalar", "scale"),
            ),
            norms=_NORMS,
        )
    ),
    gguf_weights=(
        *gguf_layer(
            ("post_attention_norm.weight", "attn_post_norm"),
            ("post_ffw_norm_1.weight", "ffn_post_norm_1"),
            ("pre_ffw_norm_2.weight", "ffn_norm_2"),
            ("post_ffw_norm_2.weight", "ffn_post_norm_2"),
            ("post_ffw_norm.weight", "ffn_post_norm"),
            ("ffn_gate_inp.scale", "router.norm"),
            ("ffn_down_exps.scale", "router.expert_scale"),
            ("layer_output_scale.weight", "scale"),
        ),
        *gguf_rules(experts=True),
    ),
    gguf_keys=(
        *WINDOW_KEYS,
        GgufKey("head_dim", "attention.key_length_swa"),
        GgufKey("global_head_dim", "attention.key_length"),
        GgufKey("num_key_value_heads", "attention.head_count_kv", where=(PATTERN, True)),
        GgufKey("num_global_key_value_heads", "attention.head_count_kv", where=(PATTERN, False)),
        GgufKey("attention_k_eq_v", "blk.{layer}.attn_v.weight", "missing"),
        GgufKey("partial_rotary_factor", "rope_freqs.weight", "share"),
        GgufKey("rope_local_base_freq", "rope.freq_base_swa", "number"),
        GgufKey("", "rope.dimension_count", "ignored"),
        GgufKey("enable_moe_block", "blk.{layer}.ffn_gate_inp.weight", "tensor"),
        GgufKey("num_experts", "expert_count", "count"),
        GgufKey("top_k_experts", "expert_used_count", "count"),
        GgufKey("moe_intermediate_size", "expert_feed_forward_length", "count"),
        GgufKey("final_logit_softcapping", "final_logit_softcapping", "number"),
        GgufKey("hidden_size_per_layer_input", "embedding_length_per_layer_input", "count"),
        GgufKey("num_kv_shared_layers", "attention.shared_kv_layers", "count"),
    ),
)
