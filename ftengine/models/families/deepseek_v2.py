"""deepseek_v2: latent attention and a softmax router with groups; Lite has no query latent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Config, Family, GgufKey, read_model
from ftengine.models.families.latent import (
    LATENT_GGUF_KEYS,
    hf_latent_rules,
    read_latent,
    read_moe,
    read_router,
    stack,
)
from ftengine.models.families.names import gguf_latent
from ftengine.models.spec import ModelConfig

_GREEDY, _GROUPED = "greedy", "group_limited_greedy"


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a DeepSeek-V2 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    router = replace(
        read_router(config, default_scale=1.0, score="softmax"), normalize=False, group_by="max"
    )
    method = values.get("topk_method", _GREEDY)
    if method not in (_GREEDY, _GROUPED):
        raise LoadError(f"config.json: topk_method {method!r} is not built yet")
    if method == _GREEDY:
        router = replace(router, groups=1, kept_groups=1)
    attention = (read_latent(config),) * config.num_layers()
    layers = stack(config, attention, read_moe(config, router), default_first=0)
    return read_model(config, "deepseek_v2", layers)


FAMILY = Family(
    name="deepseek_v2",
    architectures=("DeepseekV2ForCausalLM",),
    model_types=("deepseek_v2",),
    gguf_archs=("deepseek2",),
    read_config=read_config,
    weights=hf_latent_rules(),
    gguf_weights=gguf_latent(),
    gguf_keys=(*LATENT_GGUF_KEYS, GgufKey("topk_method", "", default=_GROUPED)),
    gguf_only=(("expert_gating_func", (None, 0, 1)),),
)
