"""muse_glimmer: dense; gated windowed attention, every fourth layer full, without positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    GGUF_LAYOUT,
    Config,
    Family,
    GgufKey,
    gguf_layout,
    read_attention,
    read_model,
    text_config,
)
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    hf_dense_mlp,
    hf_rules,
    layer_rules,
    wrapped,
)
from ftengine.models.families.windowed import FULL, WINDOW_KEYS, WINDOWED
from ftengine.models.spec import (
    AttentionSpec,
    HeadNorm,
    LayerSpec,
    MlpSpec,
    ModelConfig,
    NormSpec,
)

_NORMS = (
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "attn_post_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "ffn_post_norm"),
)
_PERIOD = 4


def _mixers(config: Config) -> tuple[AttentionSpec, ...]:
    found = read_attention(
        config, default_theta=10000.0, qk_norm=True, bias=config.flag("attention_bias", False)
    )
    found = replace(found, gate=True, gate_apart=True)
    if not gguf_layout(config):  # such files have the factor in the weights of a norm
        scale = found.scale * config.number("qk_scale_factor", 3.87)
        found = replace(found, norm=HeadNorm(free=True), scale=scale)
    count = config.num_layers()
    kinds = config.layer_types(
        lambda layer: WINDOWED if (count - 1 - layer) % _PERIOD else FULL, WINDOWED, FULL
    )
    window = config.size("sliding_window", default=2048)
    thetas = config.values.get("layer_rope_theta")
    if thetas is not None and (not isinstance(thetas, list) or len(thetas) != count):
        raise LoadError(f"config.json: layer_rope_theta must list {count} layers")
    mixers = []
    for layer, kind in enumerate(kinds):
        turns = kind == WINDOWED if thetas is None else bool(thetas[layer])
        rope = found.rope if turns else None
        mixers.append(replace(found, rope=rope, window=window if kind == WINDOWED else 0))
    return tuple(mixers)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Muse Glimmer model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(text_config(values))
    mlp = MlpSpec(config.size("intermediate_size"), config.activation("hidden_activation"))
    layers = tuple(LayerSpec(mixer, mlp, post_norms=True) for mixer in _mixers(config))
    return read_model(
        config,
        "muse_glimmer",
        layers,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        norm_add_one=True,
        norms=NormSpec(
            plain_final=True, post_eps=config.number("post_norm_eps", 1e-8), embedding=True
        ),
        logit_scale=config.number("output_multiplier", 1.0),
        logit_softcap=config.number("final_logit_softcapping", 20.0),
    )


FAMILY = Family(
    name="muse_glimmer",
    architectures=("MuseGlimmerForConditionalGeneration", "MuseGlimmerForCausalLM"),
    model_types=("muse_glimmer", "muse_glimmer_text"),
    gguf_archs=("muse-glimmer",),
    gguf_permuted=True,
    read_config=read_config,
    weights=wrapped(
        hf_rules(
            *hf_dense_mlp(),
            *layer_rules(("self_attn.gate_proj.weight", "attn.gate")),
            norms=_NORMS,
        )
    ),
    gguf_weights=(
        *gguf_layer(
            ("attn_gate.weight", "attn.gate"),
            ("post_attention_norm.weight", "attn_post_norm"),
            ("post_ffw_norm.weight", "ffn_post_norm"),
        ),
        *gguf_rules(experts=False),
    ),
    gguf_keys=(
        GGUF_LAYOUT,
        *WINDOW_KEYS,
        GgufKey("output_multiplier", "logit_scale", "number"),
        GgufKey("final_logit_softcapping", "final_logit_softcapping", "number", 0.0),
    ),
)
