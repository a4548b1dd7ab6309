"""glm4_moe_lite: GLM-4.7-Flash; latent attention and the sigmoid router without groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import Config, Family, read_model
from ftengine.models.families.latent import (
    LATENT_GGUF_KEYS,
    drafting_notes,
    hf_latent_rules,
    read_latent,
    read_moe,
    read_router,
    stack,
)
from ftengine.models.families.names import gguf_latent
from ftengine.models.spec import ModelConfig


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a GLM-4.7-Flash model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    moe = read_moe(config, read_router(config, default_scale=1.8))
    attention = (read_latent(config),) * config.num_layers()
    return read_model(
        config,
        "glm4_moe_lite",
        stack(config, attention, moe, default_first=1),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        notes=drafting_notes(values),
    )


FAMILY = Family(
    name="glm4_moe_lite",
    architectures=("Glm4MoeLiteForCausalLM",),
    model_types=("glm4_moe_lite",),
    gguf_archs=("deepseek2",),
    read_config=read_config,
    weights=hf_latent_rules(),
    gguf_weights=gguf_latent(),
    gguf_keys=LATENT_GGUF_KEYS,
    gguf_only=(("tokenizer.ggml.pre", ("glm4",)),),
)
