"""cohere2_moe: Command with experts; attention and experts take the same normed input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    EXPERT_KEYS,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import dense_layers, hf_moe
from ftengine.models.families.names import gguf_rules, gguf_shared, hf_rules
from ftengine.models.families.windowed import FULL, WINDOW_KEYS, WINDOWED, shared_experts
from ftengine.models.spec import (
    RMS,
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    NormSpec,
    RouterSpec,
)

_CENTRED = "centred_norms"
"""GGUF files name the epsilon of either kind of norm; config.json has it in one place then."""
_SCORE, _GATING = "expert_selection_fn", "expert_gating_func"


def _mixers(config: Config, dense: tuple[bool, ...]) -> tuple[AttentionSpec, ...]:
    """Positions on windowed layers, and on dense ones where those are all full."""
    full = read_attention(config, default_theta=10000.0, bias=config.flag("attention_bias", False))
    assert full.rope is not None
    turned = replace(full, rope=replace(full.rope, style="interleaved"))
    windowed = replace(turned, window=config.size("sliding_window", default=4096))
    plain = replace(full, rope=None)
    first, every = sum(dense), config.size("sliding_window_pattern", default=4)
    dense_every = config.size("prefix_dense_sliding_window_pattern", default=1)

    def kind(layer: int) -> str:
        at, period = (layer, dense_every) if layer < first else (layer - first, every)
        return WINDOWED if (at + 1) % period else FULL

    kinds = config.layer_types(kind, WINDOWED, FULL)
    return tuple(
        windowed if kind == WINDOWED else turned if is_dense and dense_every == 1 else plain
        for kind, is_dense in zip(kinds, dense, strict=True)
    )


def _moe(config: Config) -> MoeSpec:
    score = config.values.get("expert_selection_fn", "softmax")
    strategy = config.values.get("shared_expert_combination_strategy", "average")
    if score not in ("softmax", "sigmoid") or strategy not in ("average", "sum"):
        raise LoadError(
            f"config.json: expert_selection_fn {score!r} with {strategy!r} is not built yet"
        )
    width = config.size("intermediate_size")
    shared = shared_experts(config, "num_shared_experts", width, 0)
    share = 0.5 if shared is not None and strategy == "average" else 1.0
    router = RouterSpec(
        config.size("num_experts", "num_local_experts", default=8),
        config.size("num_experts_per_tok", default=2),
        score=score,
        # a softmax of the chosen logits is the softmax of all, divided by what was chosen
        normalize=score == "softmax" or config.flag("norm_topk_prob", True),
        scale=share,
    )
    return MoeSpec(router, width, config.activation(), shared=shared, shared_scale=share)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Command MoE model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    dense, moe = dense_layers(config, 0), _moe(config)
    width = config.size("prefix_dense_intermediate_size", "intermediate_size")
    mlp = MlpSpec(width, config.activation())
    layers = tuple(
        LayerSpec(mixer, mlp if is_dense else moe, parallel=True)
        for mixer, is_dense in zip(_mixers(config, dense), dense, strict=True)
    )
    is_rms = values.get("rms_norm_eps") is not None and not config.flag(_CENTRED, False)
    eps = config.number("rms_norm_eps", config.number("layer_norm_eps", 1e-5))
    return read_model(
        config,
        "cohere2_moe",
        layers,
        norm_eps=eps,
        norms=RMS if is_rms else NormSpec(centred=True),
        logit_scale=config.number("logit_scale", 0.0625),
        tied_head=config.flag("tie_word_embeddings", True),
    )


FAMILY = Family(
    name="cohere2_moe",
    architectures=("Cohere2MoeForCausalLM",),
    model_types=("cohere2_moe",),
    gguf_archs=("cohere2moe",),
    read_config=read_config,
    weights=hf_rules(*hf_moe()),
    gguf_weights=(*gguf_rules(experts=True), *gguf_shared()),
    gguf_keys=(
        *EXPERT_KEYS,
        *WINDOW_KEYS,
        GgufKey("intermediate_size", "expert_feed_forward_length"),
        GgufKey("prefix_dense_intermediate_size", "feed_forward_length"),
        GgufKey("first_k_dense_replace", "leading_dense_block_count", "count", 0),
        GgufKey("num_shared_experts", "expert_shared_count", "count", 0),
        GgufKey("norm_topk_prob", "expert_weights_norm", "flag", False),
        GgufKey(_SCORE, "", default="sigmoid"),
        GgufKey(_SCORE, "", default="softmax", only=(_GATING, 1)),
        GgufKey("logit_scale", "logit_scale", "number"),
        GgufKey(_CENTRED, "", default=True, only=("attention.layer_norm_rms_epsilon", None)),
    ),
)
