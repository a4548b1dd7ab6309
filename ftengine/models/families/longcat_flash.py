"""longcat_flash: two attentions and MLPs to a layer; experts of the first join after the second.

Some experts return their input. A layer of the checkpoint is two of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.models.families.base import Config, Family, read_model
from ftengine.models.families.latent import hf_latent, read_latent
from ftengine.models.families.names import hf_dense_mlp, hf_rules, layer_rules
from ftengine.models.spec import (
    LatentSpec,
    LateSpec,
    LayerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
)
from ftengine.models.weight_names import Rule


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a LongCat-Flash model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config({**values, "num_hidden_layers": _count(values)})
    attention = _attention(config)
    mlp = MlpSpec(config.size("ffn_hidden_size", "intermediate_size"), config.activation())
    moe = _moe(config)
    pair = (
        LayerSpec(attention, LateSpec(mlp, moe)),
        LayerSpec(attention, mlp, takes_late=True),
    )
    return read_model(
        config,
        "longcat_flash",
        pair * config.num_layers(),
        norm_eps=config.number("rms_norm_eps", 1e-5),
    )


def _count(values: Mapping[str, Any]) -> int:
    return Config(values).size("num_layers", "num_hidden_layers")


def _attention(config: Config) -> LatentSpec:
    """Latents grow to the length of the input."""
    plain = read_latent(config)
    hidden = config.size("hidden_size")
    q_gain = (hidden / plain.q_rank) ** 0.5 if plain.q_rank else 1.0
    return replace(plain, q_gain=q_gain, kv_gain=(hidden / plain.kv_rank) ** 0.5)


def _moe(config: Config) -> MoeSpec:
    idle = config.values.get("zero_expert_num")
    router = RouterSpec(
        config.size("n_routed_experts", "num_experts"),
        config.size("moe_topk", "num_experts_per_tok", default=12),
        normalize=config.flag("norm_topk_prob", False),
        scale=config.number("routed_scaling_factor", 6.0),
        bias=config.flag("router_bias", False),
        correction=True,
        identities=config.size("zero_expert_num") if idle else 0,
    )
    width = config.size("expert_ffn_hidden_size", "moe_intermediate_size")
    return MoeSpec(router, width, config.activation())


def _rules() -> tuple[Rule, ...]:
    """Both halves of a layer, and the experts of the first."""
    found: list[Rule] = []
    for half in (0, 1):
        rules = (
            *hf_latent(f"self_attn.{half}"),
            *hf_dense_mlp(f"mlps.{half}"),
            *layer_rules(
                (f"input_layernorm.{half}.weight", "attn_norm"),
                (f"post_attention_layernorm.{half}.weight", "ffn_norm"),
            ),
        )
        found += [replace(rule, stride=2, offset=half) for rule in rules]
    experts = "model.layers.{layer}.mlp."
    bank, router = "layers.{layer}.experts", "layers.{layer}.router"
    names = (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj"))
    found += [
        Rule(f"{experts}experts.{{expert}}.{name}.weight", bank, part, stride=2)
        for part, name in names
    ]
    found += [
        Rule(experts + "router.classifier.weight", router, stride=2),
        Rule(experts + "router.classifier.bias", router + ".bias", stride=2),
        Rule(experts + "router.e_score_correction_bias", router + ".correction", stride=2),
    ]
    return tuple(found)


FAMILY = Family(
    name="longcat_flash",
    architectures=("LongcatFlashForCausalLM",),
    model_types=("longcat_flash",),
    gguf_archs=(),
    gguf_name="longcat-flash",
    read_config=read_config,
    weights=hf_rules(*_rules(), norms=(), attention=()),
)
