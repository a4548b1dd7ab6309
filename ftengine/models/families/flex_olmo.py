"""flex_olmo: the blocks of olmoe; norms on what they give, none on what they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import Config, Family, read_model
from ftengine.models.families.names import hf_experts, hf_rules
from ftengine.models.families.olmoe import read_softmax_moe, read_whole_norm_attention
from ftengine.models.spec import LayerSpec, ModelConfig

_NORMS = (
    ("post_attention_layernorm", "attn_post_norm"),
    ("post_feedforward_layernorm", "ffn_post_norm"),
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a FlexOlmo model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    layer = LayerSpec(
        read_whole_norm_attention(config, 500000.0),
        read_softmax_moe(config, 7, 5),
        post_norms=True,
        pre_norms=False,
    )
    return read_model(config, "flex_olmo", (layer,) * config.num_layers())


FAMILY = Family(
    name="flex_olmo",
    architectures=("FlexOlmoForCausalLM",),
    model_types=("flex_olmo",),
    gguf_archs=(),
    gguf_name="flex-olmo",
    read_config=read_config,
    weights=hf_rules(*hf_experts("mlp", "gate_proj", "up_proj", "down_proj"), norms=_NORMS),
)
