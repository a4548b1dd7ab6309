"""What the families with latent attention share: its config keys, their router and their names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import GROUP_KEYS, ROUTED_KEYS, Config, GgufKey
from ftengine.models.families.names import hf_dense_mlp, hf_experts, hf_rules, layer_rules
from ftengine.models.spec import (
    LatentSpec,
    LayerSpec,
    MixerSpec,
    MlpSpec,
    MoeSpec,
    RopeSpec,
    RouterSpec,
)
from ftengine.models.weight_names import Rule

_DENSE, _SPARSE = "dense", "sparse"
_APART = "kv_b_apart"
_KEY_LENGTH = "attention.key_length_mla|attention.key_length"

LATENT_GGUF_KEYS = (
    *ROUTED_KEYS,
    GgufKey("norm_topk_prob", "expert_weights_norm", "flag", False),
    *GROUP_KEYS,
    GgufKey("n_shared_experts", "expert_shared_count", "count", 0),
    GgufKey("q_lora_rank", "attention.q_lora_rank"),
    GgufKey("kv_lora_rank", "attention.kv_lora_rank"),
    GgufKey("qk_rope_head_dim", "rope.dimension_count"),
    GgufKey("qk_nope_head_dim", _KEY_LENGTH, less="rope.dimension_count"),
    GgufKey("v_head_dim", "attention.value_length_mla|attention.value_length"),
    GgufKey("rope_scaling.mscale", "rope.scaling.yarn_log_multiplier", "number", times=10.0),
    GgufKey(
        "rope_scaling.mscale_all_dim", "rope.scaling.yarn_log_multiplier", "number", times=10.0
    ),
    GgufKey(_APART, "blk.{layer}.attn_k_b.weight", "tensor"),
)
"""Settings of GGUF files with latent attention. Files hold keys and values of the latents apart
since 2025; those before hold them as checkpoints do.
"""

INDEX_GGUF_KEYS = (
    GgufKey("index_n_heads", "attention.indexer.head_count"),
    GgufKey("index_head_dim", "attention.indexer.key_length"),
    GgufKey("index_topk", "attention.indexer.top_k"),
)


def read_latent(config: Config) -> LatentSpec:
    """The attention block. Raises: LoadError naming the key."""
    if config.flag("attention_bias", False):
        raise LoadError("config.json: attention_bias true is not built yet with latent attention")
    nope, rope_dim = config.size("qk_nope_head_dim"), config.size("qk_rope_head_dim")
    q_rank = config.values.get("q_lora_rank")
    rope = latent_rope(config, rope_dim)
    return LatentSpec(
        num_heads=config.size("num_attention_heads"),
        nope_dim=nope,
        rope_dim=rope_dim,
        value_dim=config.size("v_head_dim"),
        kv_rank=config.size("kv_lora_rank"),
        q_rank=config.size("q_lora_rank") if q_rank is not None else 0,
        scale=(nope + rope_dim) ** -0.5 * _long_scale(rope),
        rope=rope,
        apart=config.flag(_APART, False),
    )


def latent_rope(config: Config, dims: int) -> RopeSpec:
    """The rope of the dimensions that rotate: pairs lie side by side unless the config says not."""
    plain = {**config.values, "partial_rotary_factor": None}
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(plain.get(key), dict):
            plain[key] = {**plain[key], "partial_rotary_factor": None}
    found = Config(plain).rope(dims, 10000.0)
    style = "interleaved" if config.flag("rope_interleave", True) else "half"
    return replace(found, style=style)


def _long_scale(rope: RopeSpec) -> float:
    """What yarn does to the softmax scale beside the cosines."""
    numbers = dict(rope.factors)
    every = numbers.get("mscale_all_dim", 0.0)
    if rope.scaling != "yarn" or not every or numbers["factor"] <= 1:
        return 1.0
    return (0.1 * every * math.log(numbers["factor"]) + 1.0) ** 2


def read_moe(config: Config, router: RouterSpec) -> MoeSpec:
    """Routed experts, and one MLP as wide as all shared experts beside them."""
    activation = config.activation()
    width = config.size("moe_intermediate_size")
    count = config.values.get("n_shared_experts")
    shared = None
    if count:
        shared = MlpSpec(config.size("n_shared_experts") * width, activation, stem="shared")
    return MoeSpec(router, width, activation, shared=shared)


def read_router(
    config: Config, *, default_scale: float, score: str = "sigmoid", default_groups: int = 1
) -> RouterSpec:
    """Scores of all experts; the best groups, then the best experts; weights that add up."""
    experts = config.size("n_routed_experts", "num_experts", "num_local_experts")
    groups, kept = read_groups(config, experts, default_groups)
    scale = config.values.get("routed_scaling_factor", default_scale)
    return RouterSpec(
        experts,
        config.size("num_experts_per_tok", default=8),
        score=score,
        normalize=config.flag("norm_topk_prob", True),
        scale=1.0 if scale is None else config.number("routed_scaling_factor", default_scale),
        correction=score == "sigmoid",
        groups=groups,
        kept_groups=kept,
    )


def read_groups(config: Config, experts: int, default: int = 1) -> tuple[int, int]:
    """(groups, kept groups). Raises: LoadError where they do not fit the experts."""
    groups = config.size("n_group", default=default)
    kept = config.size("topk_group", default=groups)
    if experts % groups or kept > groups or (groups > 1 and experts // groups < 2):
        raise LoadError(
            f"config.json: n_group {groups} and topk_group {kept} do not fit {experts} experts"
        )
    return groups, kept


def dense_layers(config: Config, default_first: int) -> tuple[bool, ...]:
    """Which layers have one MLP instead of experts."""
    count = config.num_layers()
    kinds = config.values.get("mlp_layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != count or {*kinds} - {_DENSE, _SPARSE}:
            raise LoadError(f"config.json: mlp_layer_types must say dense or sparse {count} times")
        return tuple(kind == _DENSE for kind in kinds)
    first = config.values.get("first_k_dense_replace", default_first)
    if type(first) is not int or first < 0:
        raise LoadError(f"config.json: first_k_dense_replace must be a number, got {first!r}")
    every = config.size("moe_layer_freq", default=1)
    return tuple(layer < first or layer % every != 0 for layer in range(count))


def stack(
    config: Config, mixers: tuple[MixerSpec, ...], moe: MoeSpec, default_first: int
) -> tuple[LayerSpec, ...]:
    """Layers of these mixers, the first ones with a dense MLP."""
    dense = dense_layers(config, default_first)
    mlp = None
    if any(dense):
        mlp = MlpSpec(config.size("intermediate_size"), config.activation())
    return tuple(
        LayerSpec(mixer, mlp if is_dense and mlp is not None else moe)
        for mixer, is_dense in zip(mixers, dense, strict=True)
    )


def drafting_notes(values: Mapping[str, Any]) -> tuple[str, ...]:
    """A note where the checkpoint has layers that predict further tokens."""
    count = values.get("num_nextn_predict_layers") or values.get("num_mtp_layers")
    if type(count) is not int or count < 1:
        return ()
    return ("layers for multi-token prediction are left out",)


def hf_latent(prefix: str = "self_attn") -> tuple[Rule, ...]:
    """Latent attention and its indexer."""
    names = (
        ("q_proj.weight", "mla.q"),
        ("q_a_proj.weight", "mla.q_a"),
        ("q_a_layernorm.weight", "mla.q_a_norm"),
        ("q_b_proj.weight", "mla.q_b"),
        ("kv_a_proj_with_mqa.weight", "mla.kv_a"),
        ("kv_a_layernorm.weight", "mla.kv_a_norm"),
        ("kv_b_proj.weight", "mla.kv_b"),
        ("o_proj.weight", "mla.o"),
        ("indexer.wq_b.weight", "index.q"),
        ("indexer.wk.weight", "index.k"),
        ("indexer.k_norm.weight", "index.k_norm"),
        ("indexer.k_norm.bias", "index.k_norm.bias"),
        ("indexer.weights_proj.weight", "index.weights"),
    )
    return layer_rules(*((f"{prefix}.{name}", ours) for name, ours in names))


def hf_moe() -> tuple[Rule, ...]:
    """Experts, the shared ones, the router with its correction, and dense layers."""
    return (
        *hf_experts("mlp", "gate_proj", "up_proj", "down_proj"),
        *hf_dense_mlp("mlp.shared_experts", "shared"),
        *layer_rules(("mlp.gate.e_score_correction_bias", "router.correction")),
        *hf_dense_mlp(),
    )


def hf_latent_rules() -> tuple[Rule, ...]:
    """Everything a checkpoint of these families holds."""
    return hf_rules(*hf_moe(), attention=hf_latent())
