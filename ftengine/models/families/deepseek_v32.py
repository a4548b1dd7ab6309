"""deepseek_v32: DeepSeek-V3 whose attention sees the tokens that an indexer chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import Config, Family, read_model
from ftengine.models.families.latent import (
    INDEX_GGUF_KEYS,
    LATENT_GGUF_KEYS,
    drafting_notes,
    hf_latent_rules,
    read_latent,
    read_moe,
    read_router,
    stack,
)
from ftengine.models.families.names import gguf_latent
from ftengine.models.spec import IndexerSpec, ModelConfig


def read_indexer(config: Config, *, default_heads: int, style: str) -> IndexerSpec:
    """The indexer of every layer that has one."""
    return IndexerSpec(
        config.size("index_n_heads", default=default_heads),
        config.size("index_head_dim", default=128),
        config.size("index_topk", default=2048),
        style,
    )


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a DeepSeek-V3.2 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    moe = read_moe(config, read_router(config, default_scale=2.5, default_groups=8))
    indexer = read_indexer(config, default_heads=64, style="half")
    attention = (replace(read_latent(config), indexer=indexer),) * config.num_layers()
    return read_model(
        config,
        "deepseek_v32",
        stack(config, attention, moe, default_first=3),
        notes=drafting_notes(values),
    )


FAMILY = Family(
    name="deepseek_v32",
    architectures=("DeepseekV32ForCausalLM",),
    model_types=("deepseek_v32",),
    gguf_archs=("deepseek32",),
    read_config=read_config,
    weights=hf_latent_rules(),
    gguf_weights=gguf_latent(),
    gguf_keys=(*LATENT_GGUF_KEYS, *INDEX_GGUF_KEYS),
)
