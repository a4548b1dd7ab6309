"""mistral4: Mistral Small 4; latent attention whose queries grow with the position; softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import Config, Family, GgufKey, read_model, text_config
from ftengine.models.families.latent import (
    LATENT_GGUF_KEYS,
    hf_latent_rules,
    read_latent,
    read_moe,
    read_router,
    stack,
)
from ftengine.models.families.names import gguf_latent, wrapped
from ftengine.models.spec import ModelConfig

_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Mistral 4 model -> ModelConfig. Raises: LoadError naming the key."""
    given = text_config(values)
    rope = given.get("rope_parameters") or given.get("rope_scaling")
    if not isinstance(rope, dict):
        rope = given["rope_parameters"] = _ROPE
    config = Config(given)
    attention = read_latent(config)
    numbers = Config(rope)
    beta = numbers.number("llama_4_scaling_beta", 0.0)
    if beta:
        old = numbers.size("original_max_position_embeddings")
        attention = replace(attention, temper=(beta, float(old)))
    router = read_router(config, default_scale=1.0, score="softmax")
    mixers = (attention,) * config.num_layers()
    return read_model(config, "mistral4", stack(config, mixers, read_moe(config, router), 0))


FAMILY = Family(
    name="mistral4",
    architectures=("Mistral4ForCausalLM",),
    model_types=("mistral4",),
    gguf_archs=("mistral4",),
    read_config=read_config,
    weights=wrapped(hf_latent_rules()),
    gguf_weights=gguf_latent(),
    gguf_keys=(
        *LATENT_GGUF_KEYS,
        # most files do not say it
        GgufKey("rope_scaling.llama_4_scaling_beta", "attention.temperature_scale", "number", 0.1),
    ),
)
