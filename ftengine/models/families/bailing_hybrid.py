"""bailing_hybrid: Ling and Ring hybrids; delta attention with bounded decays, gated latent one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import Config, Family, read_model
from ftengine.models.families.kimi_linear import FULL, LINEAR, hf_kda, read_linear_moe
from ftengine.models.families.latent import drafting_notes, hf_moe, read_latent, stack
from ftengine.models.families.names import hf_rules, layer_rules
from ftengine.models.scan_specs import KdaSpec
from ftengine.models.spec import MixerSpec, ModelConfig
from ftengine.models.weight_names import Rule


def _mixers(config: Config) -> tuple[MixerSpec, ...]:
    if not config.flag("kda_safe_gate", True):
        raise LoadError("config.json: kda_safe_gate false is not built yet")
    bound = config.number("kda_lower_bound", -5.0)
    if bound >= 0:
        raise LoadError(f"config.json: kda_lower_bound must be below 0, got {bound}")
    kda = KdaSpec(
        config.size("linear_num_heads", "num_attention_heads"),
        config.size("linear_head_dim", "head_dim", default=128),
        config.size("linear_conv_kernel_dim", "short_conv_kernel_size", default=4),
        bound=bound,
    )
    latent = replace(read_latent(config), gate=True)
    every = config.size("layer_group_size", default=6)
    kinds = config.layer_types(lambda layer: LINEAR if (layer + 1) % every else FULL, LINEAR, FULL)
    return tuple(kda if kind == LINEAR else latent for kind in kinds)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Ling hybrid -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    layers = stack(config, _mixers(config), read_linear_moe(config, 2.5), default_first=2)
    return read_model(
        config,
        "bailing_hybrid",
        layers,
        context_tokens=config.size("model_max_length", "max_position_embeddings", default=262144),
        notes=drafting_notes(values),
    )


FAMILY = Family(
    name="bailing_hybrid",
    architectures=("BailingHybridForCausalLM",),
    model_types=("bailing_hybrid",),
    gguf_archs=(),
    gguf_name="bailing-hybrid",
    read_config=read_config,
    weights=(
        *hf_rules(*hf_moe(), attention=hf_kda("attention", "dense")),
        Rule("model.word_embeddings.weight", "embed"),
        *layer_rules(("mlp.gate.expert_bias", "router.correction")),
    ),
)
