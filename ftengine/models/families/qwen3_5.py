"""qwen3_5: dense Qwen3.5 and 3.6; the mixers of qwen3_next with their projections apart.

Inside the vision wrapper or alone; only the language model is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import Config, Family, read_model, text_config
from ftengine.models.families.names import (
    gguf_delta,
    gguf_rules,
    hf_dense_mlp,
    hf_rules,
    wrapped,
)
from ftengine.models.families.qwen3_next import GGUF_KEYS, hf_delta, read_mixers
from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a dense Qwen3.5 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(text_config(values))
    mlp = MlpSpec(config.size("intermediate_size"), config.activation())
    layers = tuple(LayerSpec(mixer, mlp) for mixer in read_mixers(config, fused=False))
    return read_model(config, "qwen3_5", layers, norm_add_one=True)


FAMILY = Family(
    name="qwen3_5",
    architectures=("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
    model_types=("qwen3_5", "qwen3_5_text"),
    gguf_archs=("qwen35",),
    read_config=read_config,
    weights=wrapped(hf_rules(*hf_dense_mlp(), *hf_delta())),
    gguf_weights=(*gguf_delta(), *gguf_rules(experts=False)),
    gguf_keys=GGUF_KEYS,
)
