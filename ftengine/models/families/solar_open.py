"""solar_open: Solar Open; llama's attention, DeepSeek's sigmoid router on every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import Config, Family, read_attention, read_model
from ftengine.models.families.glm4_moe import GGUF_KEYS, GGUF_WEIGHTS
from ftengine.models.families.latent import hf_moe, read_moe, read_router
from ftengine.models.families.names import hf_rules
from ftengine.models.spec import LayerSpec, ModelConfig


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Solar Open model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention = read_attention(config, default_theta=1e6, bias=config.flag("attention_bias", False))
    moe = read_moe(config, read_router(config, default_scale=1.0))
    return read_model(
        config,
        "solar_open",
        (LayerSpec(attention, moe),) * config.num_layers(),
        norm_eps=config.number("rms_norm_eps", 1e-5),
    )


FAMILY = Family(
    name="solar_open",
    architectures=("SolarOpenForCausalLM",),
    model_types=("solar_open",),
    gguf_archs=("glm4moe",),
    gguf_weights=GGUF_WEIGHTS,
    gguf_keys=GGUF_KEYS,
    gguf_only=(("tokenizer.ggml.pre", ("solar-open",)),),
    read_config=read_config,
    weights=hf_rules(*hf_moe()),
)
