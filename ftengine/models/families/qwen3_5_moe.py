"""qwen3_5_moe: Qwen3.5 and 3.6 with experts, e.g. 35B-A3B; weights are always renormalised.

Inside the vision wrapper or alone; only the language model is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import Config, Family, read_model, text_config
from ftengine.models.families.names import (
    gguf_delta,
    gguf_rules,
    gguf_shared,
    hf_experts,
    hf_rules,
    wrapped,
)
from ftengine.models.families.qwen3_next import (
    GGUF_EXPERT_KEYS,
    GGUF_KEYS,
    hf_delta,
    hf_shared_expert,
    read_mixers,
    read_moe,
)
from ftengine.models.spec import LayerSpec, ModelConfig


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Qwen3.5 MoE model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(text_config(values))
    moe = read_moe(config, normalize=True, default_top=8)
    layers = tuple(LayerSpec(mixer, moe) for mixer in read_mixers(config, fused=False))
    return read_model(config, "qwen3_5_moe", layers, norm_add_one=True)


FAMILY = Family(
    name="qwen3_5_moe",
    architectures=("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    gguf_archs=("qwen35moe",),
    read_config=read_config,
    weights=wrapped(
        hf_rules(
            *hf_experts("mlp", "gate_proj", "up_proj", "down_proj"),
            *hf_shared_expert(),
            *hf_delta(),
        )
    ),
    gguf_weights=(*gguf_delta(), *gguf_rules(experts=True), *gguf_shared(gate=True)),
    gguf_keys=(*GGUF_KEYS, *GGUF_EXPERT_KEYS),
)
