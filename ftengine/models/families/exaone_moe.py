"""exaone_moe: K-EXAONE; three windowed layers to one full one without positions, sigmoid router."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    ROUTED_KEYS,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import drafting_notes, hf_moe, read_router, stack
from ftengine.models.families.names import gguf_rules, gguf_shared, hf_rules, layer_rules
from ftengine.models.families.windowed import WINDOW_KEYS, nope_on_full, shared_experts
from ftengine.models.spec import ModelConfig, MoeSpec


def _period(value: Any) -> int:
    """sliding_window_pattern: a number of layers, or letters such as LLLG."""
    if isinstance(value, str) and value:
        return len(value)
    if type(value) is int and value > 0:
        return value
    raise LoadError(f"config.json: sliding_window_pattern {value!r} is not a number of layers")


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a K-EXAONE model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention = read_attention(config, default_theta=1e6, qk_norm=True)
    every = _period(values.get("sliding_window_pattern", 4))
    mixers = nope_on_full(config, attention, every, 128)
    width = config.size("moe_intermediate_size")
    moe = MoeSpec(
        read_router(config, default_scale=2.5),
        width,
        config.activation(),
        shared=shared_experts(config, "num_shared_experts", width, 1),
    )
    return read_model(
        config,
        "exaone_moe",
        stack(config, mixers, moe, default_first=1),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        notes=drafting_notes(values),
    )


FAMILY = Family(
    name="exaone_moe",
    architectures=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    model_types=("exaone_moe",),
    gguf_archs=("exaone-moe",),
    read_config=read_config,
    weights=hf_rules(*hf_moe(), *layer_rules(("mlp.e_score_correction_bias", "router.correction"))),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared()),
    gguf_keys=(
        *ROUTED_KEYS,
        *WINDOW_KEYS,
        GgufKey("num_shared_experts", "expert_shared_count", "count", 0),
    ),
)
