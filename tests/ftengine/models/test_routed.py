"""Families with routed experts of many kinds: dialects of names and configs, and devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ftengine.convert.local import convert_folder
from ftengine.errors import LoadError
from ftengine.loader.ftw import FtwModel
from ftengine.models.families import family_of_config
from ftengine.models.spec import AttentionSpec, ModelConfig, MoeSpec
from tests.fakes.tiny_hybrids import build_hybrid
from tests.ftengine.parity.tiny_engines import greedy, load_engine, random_ids

SAVED_OTHERWISE = ("phimoe", "ernie4_5_moe", "hy_v3", "exaone_moe", "jamba")
SAVED_FUSED = (
    "qwen2_moe",
    "olmoe",
    "flex_olmo",
    "granitemoe",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "dots1",
    "afmoe",
    "cohere2_moe",
    "minimax",
    "solar_open",
)
KIMI_NESTED = {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "full_attn_layers": [4]}
RELEASED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "qwen2": (("layer_types",), {"use_sliding_window": False, "sliding_window": 64}),
    "hy_v3": (("mlp_layer_types",), {"first_k_dense_replace": 1}),
    "afmoe": (("layer_types",), {"global_attn_every_n_layers": 4}),
    "exaone_moe": (
        ("layer_types", "mlp_layer_types"),
        {"first_k_dense_replace": 1, "sliding_window_pattern": "LLLG"},
    ),
    "bailing_moe_v2": (
        ("n_shared_experts", "n_routed_experts", "partial_rotary_factor"),
        {"num_shared_experts": 1, "num_experts": 8, "rotary_dim": 8},
    ),
    "llama4": (("layer_types", "moe_layers"), {"no_rope_layers": [1, 1, 1, 0]}),
    "minimax": (
        ("layer_types", "full_attn_alpha_factor"),
        {"attn_type_list": [0, 0, 0, 1], "layernorm_full_attention_alpha": 3.5},
    ),
    "kimi_linear": (
        (
            "layer_types",
            "mlp_layer_types",
            "linear_head_dim",
            "linear_num_heads",
            "linear_conv_kernel_dim",
        ),
        {"linear_attn_config": KIMI_NESTED, "first_k_dense_replace": 1, "head_dim": 7},
    ),
    "bailing_hybrid": (
        (
            "layer_types",
            "mlp_layer_types",
            "linear_head_dim",
            "linear_num_heads",
            "linear_conv_kernel_dim",
        ),
        {"head_dim": 16, "first_k_dense_replace": 1},
    ),
    "cohere2_moe": (("layer_types", "mlp_layer_types"), {"first_k_dense_replace": 1}),
    "hunyuan_v1_moe": (("moe_topk",), {"moe_topk": [3, 3, 3], "num_shared_expert": [1, 1, 1]}),
    "jamba": (("layer_types",), {"attn_layer_period": 4, "attn_layer_offset": 2}),
}


def config_of(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return value


def read(config: dict[str, Any]) -> ModelConfig:
    return family_of_config(config).read_config(config)


def released(config: dict[str, Any], family: str) -> dict[str, Any]:
    """The keys that files on the hub have, of a config as the library writes it."""
    dropped, added = RELEASED[family]
    value = {key: item for key, item in config.items() if key not in ("rope_parameters", "dtype")}
    rope = dict(config.get("rope_parameters") or {})
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            value[key] = rope.pop(key)
    kind = rope.pop("rope_type", "default")
    value["rope_scaling"] = None if kind == "default" else {**rope, "type": kind}
    return {key: item for key, item in value.items() if key not in dropped} | added


@pytest.mark.parametrize("family", RELEASED)
def test_both_dialects_of_a_config_read_alike(family: str, tmp_path: Path) -> None:
    config = config_of(build_hybrid(family, tmp_path))
    assert read(released(config, family)) == read(config)


@pytest.mark.parametrize(
    "family",
    [*SAVED_OTHERWISE, *(pytest.param(name, marks=pytest.mark.slow) for name in SAVED_FUSED)],
)
def test_names_of_the_hub_and_of_the_library_give_the_same_model(
    family: str, tmp_path: Path
) -> None:
    for kind in ("hub", "library"):
        folder = build_hybrid(family, tmp_path / kind, hub_names=kind == "hub")
        convert_folder(folder, tmp_path / f"{kind}-ftw")
    first, second = tmp_path / "hub-ftw", tmp_path / "library-ftw"
    with FtwModel.open(first) as one, FtwModel.open(second) as two:
        assert [item.name for item in one.index.tensors] == [t.name for t in two.index.tensors]
        assert one.index.shards == two.index.shards


@pytest.mark.parametrize("family", ["llama4", "cohere2_moe"])
def test_slots_of_a_device_give_the_tokens_of_the_cpu(family: str, tmp_path: Path) -> None:
    """Weights on the input, and a shared expert that counts half, whatever the strategy."""
    convert_folder(build_hybrid(family, tmp_path / "hf"), tmp_path / "ftw")
    prompts = [random_ids(count, seed=count) for count in (5, 30)]
    expected = [item.token_ids for item in greedy(load_engine(tmp_path / "ftw"), prompts, 10)]
    for strategy in ("split", "resident"):
        engine = load_engine(
            tmp_path / "ftw",
            device="emulated",
            strategy=strategy,
            expert_slots=0 if strategy == "resident" else 6,
            device_bytes=1 << 30,
        )
        assert [item.token_ids for item in greedy(engine, prompts, 10)] == expected, strategy
        engine.close()


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        ("llama4", {"num_experts_per_tok": 2}, "num_experts_per_tok"),
        ("llama4", {"attention_chunk_size": 24}, "attention_chunk_size"),
        ("minimax", {"mlp_beta_factor": 2.0}, "mlp_beta_factor"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2, 3]}, "moe_topk"),
        ("hunyuan_v1_moe", {"use_cla": True}, "use_cla"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias"),
        ("cohere2_moe", {"expert_selection_fn": "tanh"}, "expert_selection_fn"),
        ("bailing_hybrid", {"kda_safe_gate": False}, "kda_safe_gate"),
        ("kimi_linear", {"mla_use_nope": False}, "mla_use_nope"),
        ("bailing_moe_v2", {"score_function": "softmax"}, "score_function"),
        ("muse_glimmer", {"layer_rope_theta": [0]}, "layer_rope_theta"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    family: str, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    config = config_of(build_hybrid(family, tmp_path))
    where = config.get("text_config", config)
    where |= change
    with pytest.raises(LoadError, match=named):
        read(config)


def test_positions_stand_where_the_family_has_them(tmp_path: Path) -> None:
    """Full layers without positions; chunks only where q and k turn."""
    trinity = read(config_of(build_hybrid("afmoe", tmp_path / "a")))
    kinds = [(item.window, item.rope is None) for item in trinity.attention_specs]
    assert kinds == [(12, False)] * 3 + [(0, True)]
    llama = read(config_of(build_hybrid("llama4", tmp_path / "b")))
    assert [(item.chunk, item.temper) for item in llama.attention_specs] == [
        *[(16, None)] * 3,
        (0, (0.1, 16.0)),
    ]
    block = llama.layers[1].feed_forward
    assert isinstance(block, MoeSpec)
    assert block.weigh_input
    assert isinstance(llama.layers[0].mixer, AttentionSpec)
