"""llama: Llama 2/3, SmolLM2 and Mistral dense models; grouped-query attention, gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.models.families.base import Config, Family, read_attention, sliding_window
from ftengine.models.families.names import gguf_rules, hf_dense_mlp, hf_rules
from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Llama or Mistral model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    is_mistral = values.get("model_type") == "mistral"
    attention = read_attention(
        config,
        default_theta=10000.0,
        bias=config.flag("attention_bias", False),
        window=sliding_window(config) if is_mistral else 0,
    )
    mlp = MlpSpec(
        config.size("intermediate_size"), config.activation(), config.flag("mlp_bias", False)
    )
    return ModelConfig(
        family="llama",
        hidden_size=config.size("hidden_size"),
        vocab_size=config.size("vocab_size"),
        context_tokens=config.size("max_position_embeddings", default=2048),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_head=config.flag("tie_word_embeddings", False),
        layers=(LayerSpec(attention, mlp),) * config.num_layers(),
        eos_ids=config.token_ids("eos_token_id"),
        bos_id=next(iter(config.token_ids("bos_token_id")), None),
    )


FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    model_types=("llama", "mistral"),
    gguf_archs=("llama",),
    read_config=read_config,
    weights=hf_rules(*hf_dense_mlp()),
    gguf_weights=gguf_rules(experts=False),
    gguf_permuted=True,
    gguf_only=(("expert_count", (None, 0)),),
)
