"""nemotron_h: Nemotron-H and Nemotron 3; a layer is Mamba-2, attention, an MLP or experts.

No MLP has a gate. The larger ones run their experts in a narrower width than the stream.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    GGUF_LAYOUT,
    ROUTED_KEYS,
    Config,
    Family,
    GgufKey,
    gguf_layout,
    read_attention,
    read_model,
)
from ftengine.models.families.latent import drafting_notes, read_router
from ftengine.models.families.names import (
    LAYER,
    gguf_layer,
    gguf_mamba2,
    gguf_rules,
    gguf_shared,
    layer_rules,
)
from ftengine.models.spec import (
    Activation,
    AttentionSpec,
    LayerSpec,
    Mamba2Spec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    NoBlock,
)
from ftengine.models.weight_names import UP_ALONE, Rule

_MAMBA, _ATTENTION, _MLP, _MOE = "mamba", "attention", "mlp", "moe"
_LETTERS = {"M": _MAMBA, "*": _ATTENTION, "-": _MLP, "E": _MOE}
_NAMES = {kind: kind for kind in (_MAMBA, _ATTENTION, _MLP, _MOE)} | {
    "linear_attention": _MAMBA,
    "full_attention": _ATTENTION,
}
_RELU2 = Activation("relu2", gated=False)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Nemotron-H model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    kinds = _kinds(config)
    _refuse_unbuilt(config)
    blocks = {
        kind: LayerSpec(*made) for kind in dict.fromkeys(kinds) for made in (_block(config, kind),)
    }
    return read_model(
        config,
        "nemotron_h",
        tuple(blocks[kind] for kind in kinds),
        norm_eps=config.number("layer_norm_epsilon", 1e-5),
        notes=drafting_notes(values),
    )


def _kinds(config: Config) -> tuple[str, ...]:
    """What each layer is, from names or from a text with a letter for each."""
    listed: Any = config.values.get("layers_block_type") or config.values.get("layer_types")
    names = _NAMES
    if listed is None:
        listed, names = config.values.get("hybrid_override_pattern"), _LETTERS
    if not isinstance(listed, list | str) or not 0 < len(listed) <= 1024:
        raise LoadError(
            "config.json: layers_block_type or hybrid_override_pattern must say what each layer is"
        )
    for item in listed:
        if item not in names:
            raise LoadError(
                f"config.json: a layer is {str(item)[:40]!r}; known: {', '.join(names)}"
            )
    return tuple(names[item] for item in listed)


def _refuse_unbuilt(config: Config) -> None:
    if config.values.get("sliding_window") is not None:
        raise LoadError("config.json: sliding_window is not built yet for nemotron_h")
    if config.flag("mlp_bias", False):
        raise LoadError("config.json: mlp_bias true is not built yet")
    name = config.values.get("mlp_hidden_act", "relu2")
    if name != "relu2":
        raise LoadError(f"config.json: mlp_hidden_act {name!r} is not built yet; built: relu2")


def _block(
    config: Config, kind: str
) -> tuple[AttentionSpec | Mamba2Spec | NoBlock, MlpSpec | MoeSpec | NoBlock]:
    """(mixer, feed-forward); one of them is nothing."""
    if kind == _MAMBA:
        return _mamba(config), NoBlock()
    if kind == _ATTENTION:
        attention = read_attention(config, default_theta=10000.0)
        return replace(attention, rope=None), NoBlock()
    if kind == _MLP:
        return NoBlock(), MlpSpec(config.size("intermediate_size"), _RELU2)
    return NoBlock(), _moe(config)


def _mamba(config: Config) -> Mamba2Spec:
    heads, groups = config.size("mamba_num_heads"), config.size("n_groups", default=8)
    if heads % groups:
        raise LoadError(f"config.json: mamba_num_heads {heads} is no multiple of n_groups {groups}")
    return Mamba2Spec(
        heads,
        config.size("mamba_head_dim"),
        config.size("ssm_state_size"),
        groups,
        config.size("conv_kernel", default=4),
        config.flag("use_conv_bias", True),
        config.flag("use_bias", False),
        # The reference clamps here in whole prompts and not in single steps; here always.
        (config.number("time_step_min", 0.001), math.inf),
        norm_groups=groups,
        rates=gguf_layout(config),
    )


def _moe(config: Config) -> MoeSpec:
    latent = config.values.get("moe_latent_size")
    shared = MlpSpec(config.size("moe_shared_expert_intermediate_size"), _RELU2, stem="shared")
    return MoeSpec(
        read_router(config, default_scale=1.0),
        config.size("moe_intermediate_size"),
        _RELU2,
        shared=shared,
        latent=0 if latent is None else config.size("moe_latent_size"),
    )


def _rules() -> tuple[Rule, ...]:
    experts = LAYER + "mixer.experts."
    target = "layers.{layer}.experts"
    pairs = [
        ("norm.weight", "attn_norm|layers.{layer}.ffn_norm"),
        ("mixer.up_proj.weight", "mlp.up"),
        ("mixer.down_proj.weight", "mlp.down"),
        ("mixer.gate.weight", "router"),
        ("mixer.gate.e_score_correction_bias", "router.correction"),
        ("mixer.fc1_latent_proj.weight", "latent.down"),
        ("mixer.fc2_latent_proj.weight", "latent.up"),
        ("mixer.shared_experts.up_proj.weight", "shared.up"),
        ("mixer.shared_experts.down_proj.weight", "shared.down"),
        ("mixer.in_proj.weight", "mamba.in"),
        ("mixer.in_proj.bias", "mamba.in.bias"),
        ("mixer.conv1d.weight", "mamba.conv"),
        ("mixer.conv1d.bias", "mamba.conv.bias"),
        ("mixer.A_log", "mamba.a_log"),
        ("mixer.D", "mamba.d"),
        ("mixer.dt_bias", "mamba.dt_bias"),
        ("mixer.norm.weight", "mamba.norm"),
        ("mixer.out_proj.weight", "mamba.o"),
        ("mixer.out_proj.bias", "mamba.o.bias"),
        *((f"mixer.{part}_proj.weight", "attn." + part) for part in "qkvo"),
    ]
    found = [
        Rule("model.embeddings.weight", "embed"),
        Rule("model.norm_f.weight", "norm"),
        *layer_rules(*pairs),
    ]
    for part, name in ((UP_ALONE, "up_proj"), ("down", "down_proj")):
        found.append(Rule(f"{experts}{{expert}}.{name}.weight", target, part))
        found += [Rule(f"{experts}{name}{ending}", target, part) for ending in ("", ".weight")]
    released = [
        replace(rule, source="backbone." + rule.source.removeprefix("model.")) for rule in found
    ]
    return (*found, *released, Rule("lm_head.weight", "head"))


def _gguf_kinds(block: str, **more: Any) -> GgufKey:
    """What each layer is, where the layers without a mixer are a `block`."""
    kinds = (
        (_ATTENTION, "attention.head_count_kv"),
        (block, "feed_forward_length"),
        (_MAMBA, ""),
    )
    return GgufKey("layers_block_type", "", "kinds", kinds=kinds, **more)


FAMILY = Family(
    name="nemotron_h",
    architectures=("NemotronHForCausalLM",),
    model_types=("nemotron_h",),
    gguf_archs=("nemotron_h_moe", "nemotron_h"),
    read_config=read_config,
    weights=_rules(),
    gguf_weights=(
        *gguf_mamba2(),
        *gguf_layer(
            ("attn_norm.weight", "attn_norm|layers.{layer}.ffn_norm"),
            ("ffn_latent_down.weight", "latent.down"),
            ("ffn_latent_up.weight", "latent.up"),
        ),
        Rule("blk.{layer}.ffn_up_exps.weight", "layers.{layer}.experts", UP_ALONE),
        *gguf_rules(experts=True),
        *gguf_shared(),
    ),
    gguf_keys=(
        GGUF_LAYOUT,
        *ROUTED_KEYS,
        _gguf_kinds(_MOE),
        _gguf_kinds(_MLP, only=("expert_count", None)),
        GgufKey("n_routed_experts", "expert_count"),
        GgufKey("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
        GgufKey("moe_latent_size", "moe_latent_size"),
        GgufKey("n_group", "expert_group_count"),
        GgufKey("topk_group", "expert_group_used_count"),
        GgufKey("mamba_num_heads", "ssm.time_step_rank"),
        GgufKey("mamba_head_dim", "ssm.inner_size", over="ssm.time_step_rank"),
        GgufKey("ssm_state_size", "ssm.state_size"),
        GgufKey("n_groups", "ssm.group_count"),
        GgufKey("conv_kernel", "ssm.conv_kernel"),
        GgufKey("use_bias", "blk.0.ssm_in.bias", "tensor"),
        GgufKey(
            "layer_norm_epsilon",
            "attention.layer_norm_rms_epsilon|attention.layer_norm_epsilon",
            "number",
        ),
        GgufKey("", "rope.dimension_count", "ignored"),
    ),
)
