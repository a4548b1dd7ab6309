"""gemma3: text model; five windowed layers, then a full one, with ropes of their own; four norms.

Inside the vision wrapper or alone; only the language model is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    GGUF_LAYOUT,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
    text_config,
)
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    hf_dense_mlp,
    hf_rules,
    wrapped,
)
from ftengine.models.families.windowed import WINDOW_KEYS
from ftengine.models.spec import LayerSpec, MlpSpec, ModelConfig, RopeSpec

_WINDOWED, _FULL = "sliding_attention", "full_attention"
_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
}
"""Released 4B to 27B files leave out what the config class has as its default."""


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Gemma 3 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(_DEFAULTS | text_config(values))
    if config.values.get("attn_logit_softcapping") is not None:
        raise LoadError("config.json: attn_logit_softcapping is not built yet; null is")
    full_rope, window_rope = _ropes(config)
    plain = Config({**config.values, "rope_parameters": None, "rope_scaling": None})
    attention = replace(
        read_attention(
            plain,
            default_theta=1e6,
            qk_norm=True,
            bias=config.flag("attention_bias", False),
        ),
        scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
    )
    full = replace(attention, rope=full_rope)
    window = config.size("sliding_window", default=4096)
    windowed = replace(attention, rope=window_rope, window=window)
    mlp = MlpSpec(config.size("intermediate_size"), config.activation("hidden_activation"))
    every = config.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    kinds = config.layer_types(lambda i: _WINDOWED if (i + 1) % every else _FULL, _WINDOWED, _FULL)
    layers = (LayerSpec(windowed if kind == _WINDOWED else full, mlp, True) for kind in kinds)
    return read_model(
        config,
        "gemma3",
        tuple(layers),
        tied_head=config.flag("tie_word_embeddings", True),
        embedding_scale=math.sqrt(config.size("hidden_size")),
        norm_add_one=True,
        logit_softcap=config.number("final_logit_softcapping", 0.0),
    )


def _ropes(config: Config) -> tuple[RopeSpec, RopeSpec]:
    """Ropes of full and of windowed layers, in either dialect."""
    dim, values = config.size("head_dim"), config.values
    both = values.get("rope_parameters")
    if isinstance(both, dict) and _FULL in both:
        full, windowed = both.get(_FULL), both.get(_WINDOWED)
        if not isinstance(full, dict) or not isinstance(windowed, dict):
            raise LoadError(f"config.json: rope_parameters must describe {_FULL} and {_WINDOWED}")
        return config.rope_of(full, dim, 1e6), config.rope_of(windowed, dim, 1e4)
    local = config.number("rope_local_base_freq", 1e4)
    return config.rope(dim, 1e6), RopeSpec(dim, local)


_NORMS = (
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "attn_post_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "ffn_post_norm"),
)

FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    model_types=("gemma3_text", "gemma3"),
    gguf_archs=("gemma3",),
    read_config=read_config,
    weights=wrapped(hf_rules(*hf_dense_mlp(), norms=_NORMS)),
    gguf_weights=(
        *gguf_layer(
            ("post_attention_norm.weight", "attn_post_norm"),
            ("post_ffw_norm.weight", "ffn_post_norm"),
        ),
        *gguf_rules(experts=False),
    ),
    gguf_keys=(
        GGUF_LAYOUT,
        *WINDOW_KEYS,
        GgufKey("hidden_activation", "", default="gelu_pytorch_tanh"),
        GgufKey("rope_local_base_freq", "rope.freq_base_swa", "number"),
        GgufKey("final_logit_softcapping", "final_logit_softcapping", "number"),
        # files do not say what queries are scaled by; the 27B model alone differs
        GgufKey("query_pre_attn_scalar", "attention.key_length"),
        GgufKey(
            "query_pre_attn_scalar",
            "embedding_length",
            over="attention.head_count",
            only=("block_count", 62),
        ),
    ),
)
