"""hunyuan_v1_moe: Hunyuan-A13B; q and k are normalised after they turn, softmax experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Config, Family, GgufKey, read_attention, read_model
from ftengine.models.families.latent import hf_moe
from ftengine.models.families.names import (
    gguf_rules,
    gguf_shared,
    hf_attention,
    hf_dense_mlp,
    hf_rules,
    layer_rules,
)
from ftengine.models.families.windowed import shared_experts
from ftengine.models.spec import HeadNorm, LayerSpec, ModelConfig, MoeSpec, RouterSpec


def _alike(config: Config, default: int, *keys: str) -> int:
    """A size given once for all layers or as a list. Raises: LoadError if layers differ."""
    values = dict(config.values)
    for key in keys:
        found = values.get(key)
        if isinstance(found, list) and found:
            if any(item != found[0] for item in found):
                raise LoadError(f"config.json: {key} that differs by layer is not built yet")
            values[key] = found[0]
    return Config(values).size(*keys, default=default)


def _stretched(values: Mapping[str, Any]) -> dict[str, Any]:
    """rope_type "dynamic" with an alpha is a larger theta, whatever the position."""
    given = dict(values)
    for key in ("rope_scaling", "rope_parameters"):
        rope = given.get(key)
        if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type")) != "dynamic":
            continue
        alpha = Config(rope).number("alpha", 0.0)
        if alpha <= 0:
            raise LoadError("config.json: dynamic rope scaling without alpha is not built yet")
        theta = Config(rope).number("rope_theta", Config(given).number("rope_theta", 10000.0))
        heads = Config(given).size("num_attention_heads")
        dim = Config(given).size("head_dim", default=Config(given).size("hidden_size") // heads)
        given["rope_theta"] = theta * alpha ** (dim / (dim - 2))
        given[key] = None
    return given


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Hunyuan-A13B model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(_stretched(values))
    if config.flag("use_cla", False):
        raise LoadError("config.json: use_cla true (keys shared between layers) is not built yet")
    attention = read_attention(
        config,
        default_theta=10000.0,
        qk_norm=config.flag("use_qk_norm", True),
        bias=config.flag("attention_bias", False),
    )
    attention = replace(attention, norm=HeadNorm(late=True))
    router = RouterSpec(
        config.size("num_experts", "num_local_experts"),
        _alike(config, 1, "moe_topk", "num_experts_per_tok"),
    )
    width = _alike(config, config.size("intermediate_size"), "moe_intermediate_size")
    shared = shared_experts(
        Config({"num_shared_expert": _alike(config, 1, "num_shared_expert")}),
        "num_shared_expert",
        width,
        1,
    )
    layer = LayerSpec(attention, MoeSpec(router, width, config.activation(), shared=shared))
    return read_model(
        config,
        "hunyuan_v1_moe",
        (layer,) * config.num_layers(),
        norm_eps=config.number("rms_norm_eps", 1e-5),
    )


FAMILY = Family(
    name="hunyuan_v1_moe",
    architectures=("HunYuanMoEV1ForCausalLM",),
    model_types=("hunyuan_v1_moe",),
    gguf_archs=("hunyuan-moe",),
    read_config=read_config,
    weights=hf_rules(
        *hf_moe(),
        *hf_dense_mlp("mlp.shared_mlp", "shared"),
        *layer_rules(("mlp.gate.wg.weight", "router")),
        attention=hf_attention(q_norm="query_layernorm", k_norm="key_layernorm"),
    ),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared()),
    gguf_keys=(
        GgufKey("num_experts", "expert_count"),
        GgufKey("moe_topk", "expert_used_count"),
        GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
        GgufKey("num_shared_expert", "expert_shared_count", "count", 1),
    ),
)
