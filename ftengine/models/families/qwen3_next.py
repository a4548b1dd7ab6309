"""qwen3_next: three Gated DeltaNet layers to one of gated attention; experts and a shared one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    EXPERT_KEYS,
    GGUF_LAYOUT,
    ROTATED_KEY,
    Config,
    Family,
    GgufKey,
    gguf_layout,
    read_attention,
    read_model,
)
from ftengine.models.families.names import (
    gguf_delta,
    gguf_rules,
    gguf_shared,
    hf_dense_mlp,
    hf_experts,
    hf_rules,
    layer_rules,
)
from ftengine.models.families.qwen3_moe import sparse_layers
from ftengine.models.spec import (
    DeltaSpec,
    LayerSpec,
    MixerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
)
from ftengine.models.weight_names import Rule

_LINEAR, _FULL = "linear_attention", "full_attention"


def read_mixers(config: Config, *, fused: bool) -> tuple[MixerSpec, ...]:
    """The mixer of every layer. fused: b and a are one tensor, in checkpoints q, k, v and z too.

    Raises: LoadError naming the key.
    """
    attention = read_attention(
        config,
        default_theta=10000.0,
        qk_norm=True,
        bias=config.flag("attention_bias", False),
        gate=config.flag("attn_output_gate", True),
        default_partial=0.25,
    )
    key_heads = config.size("linear_num_key_heads", default=16)
    value_heads = config.size("linear_num_value_heads", default=32)
    if value_heads % key_heads:
        raise LoadError(
            f"config.json: linear_num_value_heads {value_heads} is not a multiple of "
            f"linear_num_key_heads {key_heads}"
        )
    is_gguf = gguf_layout(config)
    delta = DeltaSpec(
        key_heads,
        value_heads,
        config.size("linear_key_head_dim", default=128),
        config.size("linear_value_head_dim", default=128),
        config.size("linear_conv_kernel_dim", default=4),
        fused=config.flag("gguf_qkvz", fused and not is_gguf),
        fused_ba=fused,
        tiled=is_gguf and not fused and key_heads < value_heads,
        rates=is_gguf,
    )
    every = config.size("full_attention_interval", default=4)
    kinds = config.layer_types(lambda i: _LINEAR if (i + 1) % every else _FULL, _LINEAR, _FULL)
    return tuple(attention if kind == _FULL else delta for kind in kinds)


def read_moe(config: Config, *, normalize: bool, default_top: int) -> MoeSpec:
    """Softmax top-k experts and one shared expert weighted by a sigmoid."""
    router = RouterSpec(
        config.size("num_experts", "num_local_experts"),
        config.size("num_experts_per_tok", default=default_top),
        normalize=normalize,
    )
    activation = config.activation()
    shared_width = config.size("shared_expert_intermediate_size", default=512)
    shared = MlpSpec(shared_width, activation, stem="shared")
    width = config.size("moe_intermediate_size", default=512)
    return MoeSpec(router, width, activation, shared=shared, shared_gate=True)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a Qwen3-Next model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(values)
    moe = read_moe(config, normalize=config.flag("norm_topk_prob", True), default_top=10)
    sparse = sparse_layers(config)
    layers = []
    for number, mixer in enumerate(read_mixers(config, fused=True)):
        dense = None if sparse[number] else MlpSpec(config.size("intermediate_size"))
        layers.append(LayerSpec(mixer, dense or moe))
    return read_model(config, "qwen3_next", tuple(layers), norm_add_one=True)


def hf_delta() -> tuple[Rule, ...]:
    """Gated DeltaNet layers, projections fused or apart."""
    return layer_rules(
        ("linear_attn.in_proj_qkvz.weight", "delta.qkvz"),
        ("linear_attn.in_proj_ba.weight", "delta.ba"),
        ("linear_attn.in_proj_qkv.weight", "delta.qkv"),
        ("linear_attn.in_proj_z.weight", "delta.z"),
        ("linear_attn.in_proj_b.weight", "delta.b"),
        ("linear_attn.in_proj_a.weight", "delta.a"),
        ("linear_attn.conv1d.weight", "delta.conv"),
        ("linear_attn.A_log", "delta.a_log"),
        ("linear_attn.dt_bias", "delta.dt_bias"),
        ("linear_attn.norm.weight", "delta.norm"),
        ("linear_attn.out_proj.weight", "delta.o"),
    )


def hf_shared_expert() -> tuple[Rule, ...]:
    """The expert every token takes, and its gate."""
    gate = layer_rules(("mlp.shared_expert_gate.weight", "shared_gate"))
    return (*hf_dense_mlp("mlp.shared_expert", "shared"), *gate)


GGUF_KEYS = (
    GGUF_LAYOUT,
    ROTATED_KEY,
    GgufKey("linear_conv_kernel_dim", "ssm.conv_kernel"),
    GgufKey("linear_key_head_dim", "ssm.state_size"),
    GgufKey("linear_value_head_dim", "ssm.inner_size", over="ssm.time_step_rank"),
    GgufKey("linear_num_key_heads", "ssm.group_count"),
    GgufKey("linear_num_value_heads", "ssm.time_step_rank"),
    GgufKey("full_attention_interval", "full_attention_interval"),
)
"""What all with Gated DeltaNet say."""
GGUF_EXPERT_KEYS = (
    *EXPERT_KEYS,
    GgufKey("moe_intermediate_size", "expert_feed_forward_length"),
    GgufKey("shared_expert_intermediate_size", "expert_shared_feed_forward_length"),
)

FAMILY = Family(
    name="qwen3_next",
    architectures=("Qwen3NextForCausalLM",),
    model_types=("qwen3_next",),
    gguf_archs=("qwen3next",),
    read_config=read_config,
    weights=hf_rules(
        *hf_experts("mlp", "gate_proj", "up_proj", "down_proj"),
        *hf_dense_mlp(),
        *hf_shared_expert(),
        *hf_delta(),
    ),
    gguf_weights=(*gguf_delta(), *gguf_rules(experts=True), *gguf_shared(gate=True)),
    gguf_keys=(
        *GGUF_KEYS,
        *GGUF_EXPERT_KEYS,
        GgufKey("gguf_qkvz", "blk.0.ssm_in.weight", "tensor"),
    ),
)
