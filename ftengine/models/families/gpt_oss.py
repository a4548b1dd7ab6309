"""gpt_oss: windowed and full attention in turn, with sinks; experts with biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import Config, Family, GgufKey, read_attention, read_model
from ftengine.models.families.names import LAYER, gguf_layer, gguf_rules, hf_rules, layer_rules
from ftengine.models.spec import Activation, LayerSpec, ModelConfig, MoeSpec, RouterSpec
from ftengine.models.weight_names import Rule

_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_WINDOWED, _FULL = "sliding_attention", "full_attention"


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a gpt-oss model -> ModelConfig. Raises: LoadError naming the key."""
    given = dict(values)
    if given.get("rope_scaling") is None and given.get("rope_parameters") is None:
        given["rope_scaling"] = _YARN
    config = Config(given)
    full = read_attention(config, default_theta=150000.0, bias=config.flag("attention_bias", True))
    full = replace(full, sinks=True)
    windowed = replace(full, window=config.size("sliding_window", default=128))
    router = RouterSpec(
        config.size("num_local_experts", "num_experts"),
        config.size("num_experts_per_tok", "experts_per_token", default=4),
        bias=True,
    )
    limit, alpha = config.number("swiglu_limit", 7.0), config.number("swiglu_alpha", 1.702)
    moe = MoeSpec(
        router,
        config.size("intermediate_size"),
        Activation("swiglu_clamp", alpha, limit),
        bias=True,
    )
    kinds = config.layer_types(lambda i: _FULL if i % 2 else _WINDOWED, _WINDOWED, _FULL)
    layers = (LayerSpec(windowed if kind == _WINDOWED else full, moe) for kind in kinds)
    return read_model(
        config, "gpt_oss", tuple(layers), norm_eps=config.number("rms_norm_eps", 1e-5)
    )


def _experts() -> tuple[Rule, ...]:
    """The bf16 form holds [E, in, out], the mxfp4 form [E, out, in]; gate and up rows in turn."""
    stem, target = LAYER + "mlp.experts.", "layers.{layer}.experts"
    return (
        Rule(stem + "gate_up_proj", target, "gate_up", "columns_in_turn"),
        Rule(stem + "down_proj", target, "down", "columns"),
        Rule(stem + "gate_up_proj_blocks", target, "gate_up", "in_turn"),
        Rule(stem + "down_proj_blocks", target, "down"),
        Rule(stem + "gate_up_proj_bias", target, "gate_up_bias", "in_turn"),
        Rule(stem + "down_proj_bias", target, "down_bias"),
    )


def _gguf_rules() -> tuple[Rule, ...]:
    stem, target = "blk.{layer}.ffn_", "layers.{layer}.experts"
    return (
        *gguf_layer(
            ("post_attention_norm.weight", "ffn_norm"),
            ("attn_sinks.weight", "attn.sinks"),
            ("ffn_gate_inp.bias", "router.bias"),
        ),
        *(
            Rule(f"{stem}{part}_exps.bias", target, part + "_bias")
            for part in ("gate", "up", "down")
        ),
        *gguf_rules(experts=True),
    )


FAMILY = Family(
    name="gpt_oss",
    architectures=("GptOssForCausalLM",),
    model_types=("gpt_oss",),
    gguf_archs=("gpt-oss",),
    read_config=read_config,
    weights=hf_rules(
        *layer_rules(
            ("mlp.router.weight", "router"),
            ("mlp.router.bias", "router.bias"),
        ),
        *_experts(),
    ),
    gguf_weights=_gguf_rules(),
    gguf_keys=(
        GgufKey("num_local_experts", "expert_count"),
        GgufKey("num_experts_per_tok", "expert_used_count"),
        GgufKey("intermediate_size", "expert_feed_forward_length"),
        GgufKey("sliding_window", "attention.sliding_window"),
        GgufKey("rope_scaling.truncate", "", default=False),
    ),
)
