"""cohere2_moe: Command with experts; attention and experts take the same normed input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Config, Family, read_attention, read_model
from ftengine.models.families.latent import dense_layers, hf_moe
from ftengine.models.families.names import hf_rules
from ftengine.models.families.windowed import FULL, WINDOWED, shared_experts
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
    is_rms = values.get("rms_norm_eps") is not None
    eps = config.number("rms_norm_eps" if is_rms else "layer_norm_eps", 1e-5)
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
    gguf_archs=(),
    gguf_name="cohere2moe",
    read_config=read_config,
    weights=hf_rules(*hf_moe()),
)
