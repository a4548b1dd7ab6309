"""dots1: dots.llm1; a norm on every q and k head, DeepSeek's sigmoid router, shared experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import (
    ROUTED_KEYS,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import hf_moe, read_moe, read_router, stack
from ftengine.models.families.names import gguf_rules, gguf_shared, hf_rules
from ftengine.models.spec import AttentionSpec, ModelConfig

_WINDOWED, _FULL = "sliding_attention", "full_attention"


def _mixers(config: Config) -> tuple[AttentionSpec, ...]:
    full = read_attention(
        config, default_theta=10000.0, qk_norm=True, bias=config.flag("attention_bias", False)
    )
    kinds = config.layer_types(lambda _: _FULL, _WINDOWED, _FULL)
    if _WINDOWED not in kinds:
        return (full,) * config.num_layers()
    windowed = replace(full, window=config.size("sliding_window"))
    return tuple(windowed if kind == _WINDOWED else full for kind in kinds)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a dots.llm1 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    router = replace(
        read_router(config, default_scale=1.0), normalize=config.flag("norm_topk_prob", False)
    )
    return read_model(config, "dots1", stack(config, _mixers(config), read_moe(config, router), 0))


FAMILY = Family(
    name="dots1",
    architectures=("Dots1ForCausalLM",),
    model_types=("dots1",),
    gguf_archs=("dots1",),
    read_config=read_config,
    weights=hf_rules(*hf_moe()),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared()),
    gguf_keys=(*ROUTED_KEYS, GgufKey("n_shared_experts", "expert_shared_count")),
)
