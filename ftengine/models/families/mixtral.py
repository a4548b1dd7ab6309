"""mixtral: Llama attention, softmax top-k experts whose weights are always renormalised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import (
    Config,
    Family,
    GgufKey,
    read_attention,
    sliding_window,
)
from ftengine.models.families.names import gguf_rules, hf_experts, hf_rules
from ftengine.models.spec import LayerSpec, ModelConfig, MoeSpec, RouterSpec


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Mixtral model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    attention = read_attention(config, default_theta=1e6, window=sliding_window(config))
    router = RouterSpec(
        config.size("num_local_experts", "num_experts"),
        config.size("num_experts_per_tok", default=2),
    )
    experts = MoeSpec(router, config.size("intermediate_size"), config.activation())
    return ModelConfig(
        family="mixtral",
        hidden_size=config.size("hidden_size"),
        vocab_size=config.size("vocab_size"),
        context_tokens=config.size("max_position_embeddings", default=32768),
        norm_eps=config.number("rms_norm_eps", 1e-5),
        tied_head=config.flag("tie_word_embeddings", False),
        layers=(LayerSpec(attention, experts),) * config.num_layers(),
        eos_ids=config.token_ids("eos_token_id"),
        bos_id=next(iter(config.token_ids("bos_token_id")), None),
    )


FAMILY = Family(
    name="mixtral",
    architectures=("MixtralForCausalLM",),
    model_types=("mixtral",),
    gguf_archs=("llama",),
    read_config=read_config,
    weights=hf_rules(*hf_experts("block_sparse_moe", "w1", "w3", "w2")),
    gguf_weights=gguf_rules(experts=True),
    gguf_permuted=True,
    gguf_keys=(
        GgufKey("num_local_experts", "expert_count"),
        GgufKey("num_experts_per_tok", "expert_used_count"),
    ),
)
