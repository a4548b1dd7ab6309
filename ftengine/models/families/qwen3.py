"""qwen3: dense; grouped-query attention with a norm on every q and k head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import Config, Family, read_attention
from ftengine.models.families.names import gguf_rules, hf_dense_mlp, hf_rules
from ftengine.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelConfig


def read_layers_attention(config: Config) -> tuple[AttentionSpec, ...]:
    """Attention of every layer; the window counts only where use_sliding_window is true."""
    full = read_attention(
        config, default_theta=10000.0, qk_norm=True, bias=config.flag("attention_bias", False)
    )
    count = config.num_layers()
    if not config.flag("use_sliding_window", False) or config.values.get("sliding_window") is None:
        return (full,) * count
    windowed = replace(full, window=config.size("sliding_window"))
    kinds = config.values.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == count:
        return tuple(windowed if kind == "sliding_attention" else full for kind in kinds)
    first = int(config.number("max_window_layers", 28))
    return tuple(windowed if layer >= first else full for layer in range(count))


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a dense Qwen3 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    mlp = MlpSpec(config.size("intermediate_size"), config.activation())
    return ModelConfig(
        family="qwen3",
        hidden_size=config.size("hidden_size"),
        vocab_size=config.size("vocab_size"),
        context_tokens=config.size("max_position_embeddings", default=32768),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_head=config.flag("tie_word_embeddings", False),
        layers=tuple(LayerSpec(block, mlp) for block in read_layers_attention(config)),
        eos_ids=config.token_ids("eos_token_id"),
        bos_id=next(iter(config.token_ids("bos_token_id")), None),
    )


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    gguf_archs=("qwen3",),
    read_config=read_config,
    weights=hf_rules(*hf_dense_mlp()),
    gguf_weights=gguf_rules(experts=False),
)
