"""minimax_m3: attention to blocks that small heads choose; a shared MLP; clamped activations.

Inside the vision wrapper; only the language model is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ftengine.errors import LoadError
from ftengine.models.families.base import (
    GGUF_LAYOUT,
    MLP_KINDS_KEY,
    ROTATED_KEY,
    Config,
    Family,
    GgufKey,
    read_attention,
    read_model,
    text_config,
)
from ftengine.models.families.minimax_m2 import with_rotary_dim
from ftengine.models.families.names import (
    gguf_layer,
    gguf_rules,
    gguf_shared,
    hf_dense_mlp,
    hf_experts,
    hf_rules,
    layer_rules,
    wrapped,
)
from ftengine.models.spec import (
    Activation,
    AttentionSpec,
    BlocksSpec,
    LayerSpec,
    MlpSpec,
    ModelConfig,
    MoeSpec,
    RouterSpec,
)

_SPARSE, _FULL = "minimax_m3_sparse", "full_attention"
_INDEX_KEYS = (
    ("index_n_heads", "sparse_num_index_heads", 4),
    ("index_head_dim", "sparse_index_dim", 128),
    ("index_block_size", "sparse_block_size", 128),
    ("index_topk_blocks", "sparse_topk_blocks", 16),
    ("index_local_blocks", "sparse_local_block", 1),
)


def read_config(values: Mapping[str, Any]) -> ModelConfig:
    """config.json of a MiniMax-M3 model -> ModelConfig. Raises: LoadError naming the key."""
    config = Config(with_rotary_dim(text_config(values)))
    full = read_attention(config, default_theta=5e6, qk_norm=True, default_partial=0.5)
    sparse = replace(full, blocks=_blocks(config, full))
    kinds = _flags(config, "layer_types", _SPARSE, _FULL, "sparse_attention_freq")
    routed = _flags(config, "mlp_layer_types", "sparse", "dense", "moe_layer_freq")
    limit = config.number("swiglu_limit", 7.0)
    activation = Activation("swiglu_clamp", config.number("swiglu_alpha", 1.702), limit)
    mlp = MlpSpec(config.size("dense_intermediate_size", default=12288), activation)
    moe = _moe(config, activation)
    layers = tuple(
        LayerSpec(sparse if is_sparse else full, moe if is_routed else mlp)
        for is_sparse, is_routed in zip(kinds, routed, strict=True)
    )
    return read_model(config, "minimax_m3", layers, norm_add_one=True)


def _sparse_settings(config: Config) -> dict[str, Any]:
    found = config.values.get("sparse_attention_config")
    return found if isinstance(found, dict) else {}


def _blocks(config: Config, attention: AttentionSpec) -> BlocksSpec:
    hub = _sparse_settings(config)
    both = Config(
        {name: hub.get(short, config.values.get(name, usual)) for name, short, usual in _INDEX_KEYS}
    )
    found = BlocksSpec(*(both.size(name) for name, _, _ in _INDEX_KEYS))
    if found.num_heads != attention.num_kv_heads:
        raise LoadError(
            f"config.json: index_n_heads {found.num_heads} is not num_key_value_heads "
            f"{attention.num_kv_heads}; other counts are not built"
        )
    if found.local > found.top_blocks:
        raise LoadError("config.json: index_local_blocks is above index_topk_blocks")
    return found


def _flags(config: Config, key: str, yes: str, no: str, short: str) -> tuple[bool, ...]:
    """One of two kinds per layer: by name, or as 0 and 1 in the hub's spelling."""
    count = config.num_layers()
    kinds = config.values.get(key)
    if kinds is None:
        kinds = _sparse_settings(config).get(short, config.values.get(short))
        if kinds is None:
            return (yes == "sparse",) * count
    marks = {yes: True, no: False, 1: True, 0: False}
    if not isinstance(kinds, list) or len(kinds) != count or any(k not in marks for k in kinds):
        raise LoadError(f"config.json: {key} must say {yes} or {no} for {count} layers")
    return tuple(marks[kind] for kind in kinds)


def _moe(config: Config, activation: Activation) -> MoeSpec:
    router = RouterSpec(
        config.size("num_local_experts", "num_experts"),
        config.size("num_experts_per_tok", default=4),
        score="sigmoid",
        correction=True,
        scale=config.number("routed_scaling_factor", 2.0),
    )
    width = config.size("intermediate_size")
    together = width * config.size("n_shared_experts", default=1)
    shared = MlpSpec(config.size("shared_intermediate_size", default=together), activation)
    return MoeSpec(router, width, activation, shared=replace(shared, stem="shared"))


FAMILY = Family(
    name="minimax_m3",
    architectures=(
        "MiniMaxM3SparseForConditionalGeneration",
        "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3VLForCausalLM",
    ),
    model_types=("minimax_m3_vl", "minimax_m3_vl_text"),
    gguf_archs=("minimax-m3",),
    read_config=read_config,
    weights=wrapped(
        hf_rules(
            *hf_experts("block_sparse_moe", "w1", "w3", "w2"),
            *hf_dense_mlp("block_sparse_moe.shared_experts", "shared"),
            *hf_dense_mlp(),
            *layer_rules(
                ("block_sparse_moe.e_score_correction_bias", "router.correction"),
                ("self_attn.index_q_proj.weight", "attn.index_q"),
                ("self_attn.index_k_proj.weight", "attn.index_k"),
                ("self_attn.index_q_norm.weight", "attn.index_q_norm"),
                ("self_attn.index_k_norm.weight", "attn.index_k_norm"),
            ),
        )
    ),
    gguf_weights=(
        *gguf_layer(
            ("indexer.q_proj.weight", "attn.index_q"),
            ("indexer.k_proj.weight", "attn.index_k"),
            ("indexer.q_norm.weight", "attn.index_q_norm"),
            ("indexer.k_norm.weight", "attn.index_k_norm"),
        ),
        *gguf_rules(experts=True),
        *gguf_shared(),
    ),
    gguf_keys=(
        GGUF_LAYOUT,
        MLP_KINDS_KEY,
        ROTATED_KEY,
        GgufKey("num_local_experts", "expert_count"),
        GgufKey("num_experts_per_tok", "expert_used_count"),
        GgufKey("intermediate_size", "expert_feed_forward_length"),
        GgufKey("dense_intermediate_size", "feed_forward_length"),
        GgufKey("n_shared_experts", "expert_shared_count"),
        GgufKey("routed_scaling_factor", "expert_weights_scale", "number", 1.0),
        GgufKey("index_n_heads", "attention.indexer.head_count"),
        GgufKey("index_head_dim", "attention.indexer.key_length"),
        GgufKey("index_topk_blocks", "attention.indexer.top_k"),
        GgufKey("index_block_size", "attention.indexer.block_size"),
        GgufKey("index_local_blocks", "attention.indexer.local_blocks"),
        GgufKey(
            "layer_types",
            "",
            "kinds",
            kinds=((_SPARSE, "blk.{layer}.indexer.q_proj.weight"), (_FULL, "")),
        ),
    ),
)
