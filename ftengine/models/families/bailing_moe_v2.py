"""bailing_moe_v2: Ling and Ring 2.0, and Sarvam; q, k and v in one tensor, half a head rotates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    ROTATED_KEY,
    ROUTED_KEYS,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import drafting_notes, hf_moe, read_router, stack
from ftengine.models.families.names import gguf_rules, gguf_shared, hf_rules, layer_rules
from ftengine.models.families.windowed import shared_experts
from ftengine.models.spec import ModelConfig, MoeSpec
from ftengine.models.weight_names import Rule


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Ling or Sarvam model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(_partial(values))
    score = values.get("score_function", "sigmoid")
    if score != "sigmoid":
        raise LoadError(f"config.json: score_function {score!r} is not built yet; built: sigmoid")
    attention = read_attention(
        config,
        default_theta=10000.0,
        qk_norm=config.flag("use_qk_norm", True),
        bias=config.flag("use_qkv_bias", config.flag("attention_bias", False)),
    )
    attention = replace(attention, out_bias=config.flag("use_bias", False), fused=True)
    width = config.size("moe_intermediate_size")
    key = "n_shared_experts" if "n_shared_experts" in values else "num_shared_experts"
    moe = MoeSpec(
        read_router(config, default_scale=2.5),
        width,
        config.activation(),
        shared=shared_experts(config, key, width, 1),
    )
    layers = stack(config, (attention,) * config.num_layers(), moe, default_first=1)
    return read_model(config, "bailing_moe_v2", layers, notes=drafting_notes(values))


def _partial(values: Mapping[str, Any]) -> dict[str, Any]:
    """rotary_dim as a part of the head, where only it is given."""
    given = dict(values)
    dims = given.get("rotary_dim")
    if dims is not None and given.get("partial_rotary_factor") is None:
        config = Config(given)
        heads = config.size("num_attention_heads")
        head_dim = config.size("head_dim", default=config.size("hidden_size") // heads)
        given["partial_rotary_factor"] = config.size("rotary_dim") / head_dim
    return given


def _attention() -> tuple[Rule, ...]:
    names = (
        ("query_key_value.weight", "attn.qkv"),
        ("query_key_value.bias", "attn.qkv.bias"),
        ("dense.weight", "attn.o"),
        ("dense.bias", "attn.o.bias"),
        ("query_layernorm.weight", "attn.q_norm"),
        ("key_layernorm.weight", "attn.k_norm"),
    )
    return layer_rules(*((f"attention.{name}", ours) for name, ours in names))


FAMILY = Family(
    name="bailing_moe_v2",
    architectures=("BailingMoeV2ForCausalLM", "SarvamMoEForCausalLM"),
    model_types=("bailing_moe", "bailing_moe_v2", "sarvam_moe"),
    gguf_archs=("bailingmoe2",),
    read_config=read_config,
    weights=(
        *hf_rules(*hf_moe(), attention=_attention()),
        Rule("model.word_embeddings.weight", "embed"),
        *layer_rules(("mlp.gate.expert_bias", "router.correction")),
    ),
    gguf_weights=(
        *gguf_rules(experts=True),
        *gguf_shared(),
        Rule("blk.{layer}.attn_qkv.weight", "layers.{layer}.attn.qkv"),
        Rule("blk.{layer}.attn_qkv.bias", "layers.{layer}.attn.qkv.bias"),
    ),
    gguf_keys=(
        *ROUTED_KEYS,
        GgufKey("num_shared_experts", "expert_shared_count"),
        GgufKey("n_group", "expert_group_count"),
        GgufKey("topk_group", "expert_group_used_count"),
        ROTATED_KEY,
    ),
)
