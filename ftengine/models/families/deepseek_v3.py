"""deepseek_v3: latent attention, sigmoid router with groups and a correction. V3, R1, Kimi-K2.

Kimi-K2.5 wraps the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import Config, Family, read_model, text_config
from ftengine.models.families.latent import (
    LATENT_GGUF_KEYS,
    drafting_notes,
    hf_latent_rules,
    read_latent,
    read_moe,
    read_router,
    stack,
)
from ftengine.models.families.names import gguf_latent, wrapped
from ftengine.models.spec import ModelConfig


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a DeepSeek-V3 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(text_config(values))
    moe = read_moe(config, read_router(config, default_scale=2.5, default_groups=8))
    attention = (read_latent(config),) * config.num_layers()
    return read_model(
        config,
        "deepseek_v3",
        stack(config, attention, moe, default_first=3),
        notes=drafting_notes(config.values),
    )


FAMILY = Family(
    name="deepseek_v3",
    architectures=(
        "DeepseekV3ForCausalLM",
        "Kimi_K25ForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
    ),
    model_types=("deepseek_v3", "kimi_k2", "kimi_k25"),
    gguf_archs=("deepseek2",),
    read_config=read_config,
    weights=wrapped(hf_latent_rules()),
    gguf_weights=gguf_latent(),
    gguf_keys=LATENT_GGUF_KEYS,
)
