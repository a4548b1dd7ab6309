"""qwen3_moe: qwen3 attention; softmax top-k experts, renormalised where the config says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import EXPERT_KEYS, Config, Family, GgufKey
from ftengine.models.families.names import gguf_rules, hf_dense_mlp, hf_experts, hf_rules
from ftengine.models.families.qwen3 import read_layers_attention
from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig, MoeSpec, RouterSpec


def sparse_layers(config: Config) -> tuple[bool, ...]:
    """Which layers have experts. Raises: LoadError."""
    step = config.size("decoder_sparse_step", default=1)
    dense = config.values.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise LoadError("config.json: mlp_only_layers must be a list of layer numbers")
    count = config.num_layers()
    return tuple(number not in dense and (number + 1) % step == 0 for number in range(count))


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Qwen3 MoE model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    router = RouterSpec(
        config.size("num_experts", "num_local_experts"),
        config.size("num_experts_per_tok", default=8),
        normalize=config.flag("norm_topk_prob", False),
    )
    moe = MoeSpec(router, config.size("moe_intermediate_size"), config.activation())
    sparse = sparse_layers(config)
    layers = []
    for number, attention in enumerate(read_layers_attention(config)):
        is_moe = sparse[number]
        dense = None if is_moe else MlpSpec(config.size("intermediate_size"), config.activation())
        layers.append(LayerSpec(attention, dense or moe))
    return ModelConfig(
        family="qwen3_moe",
        hidden_size=config.size("hidden_size"),
        vocab_size=config.size("vocab_size"),
        context_tokens=config.size("max_position_embeddings", default=32768),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_head=config.flag("tie_word_embeddings", False),
        layers=tuple(layers),
        eos_ids=config.token_ids("eos_token_id"),
        bos_id=next(iter(config.token_ids("bos_token_id")), None),
    )


FAMILY = Family(
    name="qwen3_moe",
    architectures=("Qwen3MoeForCausalLM",),
    model_types=("qwen3_moe",),
    gguf_archs=("qwen3moe",),
    read_config=read_config,
    weights=hf_rules(*hf_experts("mlp", "gate_proj", "up_proj", "down_proj"), *hf_dense_mlp()),
    gguf_weights=gguf_rules(experts=True),
    gguf_keys=(
        *EXPERT_KEYS,
        GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
        GgufKey("norm_topk_prob", "", default=True),
        GgufKey("decoder_sparse_step", "", default=1),
        GgufKey("mlp_only_layers", "", default=[]),
    ),
)
