"""glm_moe_dsa: GLM-5, 5.1, 5.2; latent attention with an indexer that some layers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Config, Family, GgufKey, read_model
from ftengine.models.families.deepseek_v32 import read_indexer
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
from ftengine.models.spec import ModelConfig

_FULL, _SHARED = "full", "shared"
_TYPES = "attention.indexer.types"


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a GLM-5 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    moe = read_moe(config, read_router(config, default_scale=2.5))
    indexer = read_indexer(config, default_heads=32, style="interleaved")
    own = replace(read_latent(config), indexer=indexer)
    shared = replace(own, indexer=replace(indexer, shared=True))
    attention = tuple(own if kind == _FULL else shared for kind in _indexers(config))
    return read_model(
        config,
        "glm_moe_dsa",
        stack(config, attention, moe, default_first=3),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        notes=drafting_notes(values),
    )


def _indexers(config: Config) -> tuple[str, ...]:
    """Which layers have an indexer: a list, a pattern of F and S, or every so many layers."""
    count, values = config.num_layers(), config.values
    kinds = values.get("indexer_types")
    pattern = values.get("index_topk_pattern")
    if kinds is None and isinstance(pattern, str):
        kinds = [{"F": _FULL, "S": _SHARED}.get(letter) for letter in pattern]
    elif kinds is None:
        kinds = pattern
    if kinds is None:
        every = config.size("index_topk_freq", default=1)
        offset = config.size("index_skip_topk_offset", default=2)
        return tuple(
            _SHARED if max(layer - offset + 1, 0) % every else _FULL for layer in range(count)
        )
    if not isinstance(kinds, list) or len(kinds) != count or {*kinds} - {_FULL, _SHARED}:
        raise LoadError(f"config.json: indexer_types must say full or shared for {count} layers")
    if kinds[0] != _FULL:
        raise LoadError("config.json: indexer_types: the first layer has no indexer to share")
    return tuple(kinds)


FAMILY = Family(
    name="glm_moe_dsa",
    architectures=("GlmMoeDsaForCausalLM",),
    model_types=("glm_moe_dsa",),
    gguf_archs=("glm-dsa",),
    read_config=read_config,
    weights=hf_latent_rules(),
    gguf_weights=gguf_latent(),
    gguf_keys=(
        *LATENT_GGUF_KEYS,
        *INDEX_GGUF_KEYS,
        GgufKey("indexer_types", _TYPES, "kinds", kinds=((_FULL, _TYPES), (_SHARED, ""))),
        # files from before that setting: 5.2 alone shares indexers, and has the long context
        GgufKey("index_topk_freq", "", default=4, only=("context_length", 1 << 20)),
        GgufKey("index_skip_topk_offset", "", default=3, only=("context_length", 1 << 20)),
    ),
)
