"""Configs in every dialect mean what transformers says they mean."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ftengine.errors import LoadError
from ftengine.models.families import FAMILIES, family_named, family_of_config, family_of_gguf
from ftengine.models.spec import MlpSpec, ModelConfig
from ftengine.models.weight_names import match, wanted_banks, wanted_tensors
from tests.fakes import tiny_models as tiny


def read(config: dict[str, Any]) -> ModelConfig:
    return family_of_config(config).read_config(config)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_both_dialects_read_alike(family: str) -> None:
    """Hub spelling through transformers 5 and back out in its own spelling."""
    from transformers import AutoConfig

    hub = tiny.tiny_config(family, tiny.sizes_of(family))
    hub["rope_scaling"] = {"type": "linear", "factor": 2.0}
    changed = {key: value for key, value in hub.items() if key != "model_type"}
    canonical = json.loads(AutoConfig.for_model(hub["model_type"], **changed).to_json_string(False))
    assert "rope_parameters" in canonical
    assert "rope_scaling" not in canonical
    canonical["architectures"] = hub["architectures"]
    assert read(canonical) == read(hub)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_weight_of_a_checkpoint_has_exactly_one_place(family: str) -> None:
    sizes = tiny.sizes_of(family)
    config = read(tiny.tiny_config(family, sizes))
    places = [match(family_named(family).weights, n) for n in tiny.hub_weights(family, sizes)]
    assert all(places)
    keys = {(p.name, p.expert, p.part) for p in places if p}
    assert len(keys) == len(places)
    dense = {p.name for p in places if p and not p.part}
    assert dense == set(wanted_tensors(config))
    assert {p.name for p in places if p and p.part} == set(wanted_banks(config))


@pytest.mark.parametrize(
    ("scaling", "factors"),
    [
        (None, ()),
        ({"rope_type": "default"}, ()),
        ({"type": "linear", "factor": 4}, (("factor", 4.0),)),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            (
                ("factor", 8.0),
                ("low_freq_factor", 1.0),
                ("high_freq_factor", 4.0),
                ("original_max_position_embeddings", 8192.0),
            ),
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "truncate": False},
            (("factor", 4.0), ("original_max_position_embeddings", 512.0), ("truncate", 0.0)),
        ),
    ],
)
def test_rope_scaling(scaling: Any, factors: Any) -> None:
    config = tiny.tiny_config("llama", tiny.sizes_of("llama")) | {"rope_scaling": scaling}
    rope = read(config).layers[0].attention.rope
    assert rope is not None
    assert rope.factors == factors


def test_qwen3_moe_reads_the_renormalising_flag() -> None:
    config = tiny.tiny_config("qwen3_moe", tiny.sizes_of("qwen3_moe"))
    assert read(config).moe_specs[0].router.normalize is True
    del config["norm_topk_prob"]
    assert read(config).moe_specs[0].router.normalize is False


def test_qwen3_moe_may_have_dense_layers() -> None:
    config = tiny.tiny_config("qwen3_moe", tiny.sizes_of("qwen3_moe", layers=4))
    config |= {"mlp_only_layers": [3], "decoder_sparse_step": 2}
    kinds = [isinstance(layer.feed_forward, MlpSpec) for layer in read(config).layers]
    assert kinds == [True, False, True, True]


def test_sliding_windows_count_only_when_used() -> None:
    config = tiny.tiny_config("qwen3", tiny.sizes_of("qwen3", layers=3)) | {"sliding_window": 64}
    assert {layer.attention.window for layer in read(config).layers} == {0}
    config |= {"use_sliding_window": True, "max_window_layers": 1}
    assert [layer.attention.window for layer in read(config).layers] == [0, 64, 64]


def test_eos_may_be_an_id_a_list_or_absent() -> None:
    config = tiny.tiny_config("llama", tiny.sizes_of("llama"))
    assert read(config).eos_ids == (2,)
    assert read(config | {"eos_token_id": [5, 2, 5]}).eos_ids == (5, 2)
    assert read(config | {"eos_token_id": None}).eos_ids == ()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"eos_token_id": "end"}, "eos_token_id"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "longrope"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "low_freq_factor"),
        ({"rope_scaling": []}, "rope_scaling"),
        ({"rope_theta": float("inf")}, "rope_theta"),
    ],
)
def test_bad_values_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    config = tiny.tiny_config("llama", tiny.sizes_of("llama")) | change
    with pytest.raises(LoadError, match=named):
        read(config)


def test_an_unbuilt_family_is_refused_with_what_is_built() -> None:
    config = {"architectures": ["FutureForCausalLM"], "model_type": "future"}
    with pytest.raises(LoadError) as caught:
        family_of_config(config)
    assert caught.value.message == (
        "architecture FutureForCausalLM (family future) is not built yet; "
        f"built: {', '.join(family.name for family in FAMILIES)}"
    )
    for refused in (lambda: family_named("glm4"), lambda: family_of_gguf("glm4", {})):
        with pytest.raises(LoadError, match="not built yet; built: llama"):
            refused()


@pytest.mark.parametrize(
    ("arch", "settings", "family"),
    [
        ("llama", {}, "llama"),
        ("llama", {"llama.expert_count": 0}, "llama"),
        ("llama", {"llama.expert_count": 8}, "mixtral"),
        ("qwen3moe", {"qwen3moe.expert_count": 8}, "qwen3_moe"),
        ("granitemoe", {}, "granitemoe"),
        ("granitemoe", {"granitemoe.expert_shared_feed_forward_length": 64}, "granitemoeshared"),
        ("deepseek2", {}, "deepseek_v2"),
        ("deepseek2", {"deepseek2.expert_gating_func": 1}, "deepseek_v2"),
        ("deepseek2", {"deepseek2.expert_gating_func": 2}, "deepseek_v3"),
        ("deepseek2", {"tokenizer.ggml.pre": "glm4"}, "glm4_moe_lite"),
    ],
)
def test_gguf_settings_tell_families_of_one_architecture_apart(
    arch: str, settings: dict[str, Any], family: str
) -> None:
    assert family_of_gguf(arch, settings).name == family


def test_families_have_names_of_their_own() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
