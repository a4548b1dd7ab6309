"""Latent, sparse and compressed attention: names, configs, quantised releases, drafting layers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ftengine.convert.local import convert_folder
from ftengine.errors import LoadError
from ftengine.loader.ftw import FtwModel
from ftengine.models.families import family_of_config
from tests.fakes.quantised import KINDS, Stored, quant_config, write_stored
from tests.fakes.tiny_hybrids import build_hybrid
from tests.ftengine.models.test_hybrids import same_model
from tests.ftengine.parity.tiny_engines import load_engine, random_ids

PROMPT = random_ids(75, seed=1)
SAVED_OTHERWISE = (
    "deepseek_v3",
    "kimi_k25",
    "glm_moe_dsa",
    "deepseek_v4",
    "glm4_moe",
    "minimax_m2",
    "mimo_v2_flash",
)


@pytest.mark.parametrize("family", SAVED_OTHERWISE)
def test_names_of_the_hub_and_of_the_library_give_the_same_model(
    family: str, tmp_path: Path
) -> None:
    for kind in ("hub", "library"):
        folder = build_hybrid(family, tmp_path / kind, hub_names=kind == "hub")
        convert_folder(folder, tmp_path / f"{kind}-ftw")
    same_model(tmp_path / "hub-ftw", tmp_path / "library-ftw")


def released_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Flat keys for what the library writes as rope_parameters."""
    value = {key: item for key, item in config.items() if key not in ("rope_parameters", "dtype")}
    rope = dict(config["rope_parameters"])
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            value[key] = rope.pop(key)
    kind = rope.pop("rope_type", "default")
    return value | {"rope_scaling": None if kind == "default" else {**rope, "type": kind}}


def count_dense(value: dict[str, Any]) -> dict[str, Any]:
    kinds = value.pop("mlp_layer_types")
    return value | {"first_k_dense_replace": kinds.count("dense")}


def released_glm5(config: dict[str, Any]) -> dict[str, Any]:
    value = count_dense(released_rope(config))
    kinds = value.pop("indexer_types")
    return value | {"index_topk_pattern": "".join(kind[0].upper() for kind in kinds)}


def released_v4(config: dict[str, Any]) -> dict[str, Any]:
    ropes = config["rope_parameters"]
    value = {key: item for key, item in config.items() if key not in ("rope_parameters", "dtype")}
    scaling = dict(ropes["compress"])
    value |= {
        "rope_theta": ropes["main"]["rope_theta"],
        "compress_rope_theta": scaling.pop("rope_theta"),
        "qk_rope_head_dim": 8,
        "num_hash_layers": value.pop("mlp_layer_types").count("hash_moe"),
        "compress_rate_hca": value.pop("compress_rates")["heavily_compressed_attention"],
        "compress_ratios": [{"s": 0, "h": 128, "c": 4}[kind[0]] for kind in value["layer_types"]]
        + [0],
        "rope_scaling": {
            "type": scaling.pop("rope_type"),
            **{k: v for k, v in scaling.items() if k in ("factor", "beta_fast", "beta_slow")},
            "original_max_position_embeddings": scaling["original_max_position_embeddings"],
        },
    }
    for key in ("layer_types", "partial_rotary_factor"):
        value.pop(key, None)
    return value


def released_mimo(config: dict[str, Any]) -> dict[str, Any]:
    kinds, dense = config["layer_types"], config["mlp_layer_types"]
    dropped = ("layer_types", "mlp_layer_types", "rope_parameters", "dtype")
    value = {key: item for key, item in config.items() if key not in dropped}
    return value | {
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in kinds],
        "moe_layer_freq": [int(kind == "sparse") for kind in dense],
        "sliding_window_size": config["sliding_window"] - 1,
        "partial_rotary_factor": 0.334,
        "rope_theta": 50000.0,
        "swa_rope_theta": 10000.0,
        "routed_scaling_factor": None,
    }


def released_minimax(config: dict[str, Any]) -> dict[str, Any]:
    value = released_rope(config)
    partial = value.pop("partial_rotary_factor")
    return value | {"rotary_dim": int(value["head_dim"] * partial)}


def released_m3(config: dict[str, Any]) -> dict[str, Any]:
    value = dict(config["text_config"])
    names = ("index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks")
    shorts = ("num_index_heads", "index_dim", "block_size", "topk_blocks")
    hub = {f"sparse_{s}": value.pop(n) for n, s in zip(names, shorts, strict=True)}
    hub["sparse_local_block"] = value.pop("index_local_blocks")
    kinds = value.pop("layer_types")
    hub["sparse_attention_freq"] = [int(kind == "minimax_m3_sparse") for kind in kinds]
    freq = [int(kind == "sparse") for kind in value.pop("mlp_layer_types")]
    value |= {"sparse_attention_config": hub, "moe_layer_freq": freq, "hidden_act": "swigluoai"}
    return {**config, "text_config": value}


def released_gemma4(config: dict[str, Any]) -> dict[str, Any]:
    value = {key: item for key, item in config.items() if key != "per_layer_config"}
    return value | {"global_head_dim": 32, "num_global_key_value_heads": 1}


RELEASED: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "deepseek_v3": released_rope,
    "deepseek_v32": lambda config: count_dense(released_rope(config)),
    "glm4_moe_lite": lambda config: count_dense(released_rope(config)),
    "glm_moe_dsa": released_glm5,
    "deepseek_v4": released_v4,
    "glm4_moe": released_rope,
    "minimax_m2": released_minimax,
    "minimax_m3": released_m3,
    "mimo_v2_flash": released_mimo,
    "gemma4": released_gemma4,
}


def config_of(family: str, folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((build_hybrid(family, folder) / "config.json").read_text())
    return config


@pytest.mark.parametrize("family", RELEASED)
def test_both_dialects_of_a_config_read_alike(family: str, tmp_path: Path) -> None:
    config = config_of(family, tmp_path)
    found = family_of_config(config)
    assert found.name == family
    changed = RELEASED[family](config)
    assert changed != config
    assert found.read_config(changed) == found.read_config(config)


KEPT = re.compile(r"embed|head|norm|gate\.weight$|hc_|sink|ape$|tid2eid|weights_proj")


def quantise(source: Path, folder: Path, kind: str) -> None:
    """The checkpoint as it would be released in this format, and the values its codes stand for."""
    build = {
        name: weight.numpy() for name, weight in load_file(source / "model.safetensors").items()
    }
    kinds = {"float32": "F32", "int64": "I64"}
    stored: dict[str, Stored] = {}
    plain: dict[str, torch.Tensor] = {}
    for name, weight in build.items():
        if weight.ndim != 2 or KEPT.search(name):
            stored[name] = Stored(kinds[str(weight.dtype)], weight)
            plain[name] = torch.from_numpy(weight)
            continue
        made = KINDS[kind](name, weight.astype(np.float64))
        stem = name.removesuffix(".weight")
        stored |= {stem + end: item for end, item in made.tensors.items()}
        plain[name] = torch.from_numpy(made.values.astype(np.float32))
    modules = {name: item for name, item in build.items() if not name.endswith(".weight")}
    modules |= {n: item for n, item in build.items() if KEPT.search(n) and n.endswith(".weight")}
    config = json.loads((source / "config.json").read_text())
    for path in source.iterdir():
        if path.name != "model.safetensors":
            (folder / path.name).write_bytes(path.read_bytes())
    config["quantization_config"] = quant_config(kind, modules)
    if kind == "dsv4":
        config["expert_dtype"] = "fp4"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    write_stored(folder, stored)
    save_file(plain, source / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("family", "kind", "formats"),
    [
        ("deepseek_v3", "fp8_block", {"fp8_block"}),
        ("glm_moe_dsa", "nvfp4_modelopt", {"nvfp4"}),
        ("deepseek_v4", "dsv4", {"fp8_block_e8m0", "mxfp4"}),
    ],
)
def test_a_quantised_release_equals_its_values(
    family: str, kind: str, formats: set[str], tmp_path: Path
) -> None:
    source, released = build_hybrid(family, tmp_path / "plain"), tmp_path / "released"
    released.mkdir()
    quantise(source, released, kind)
    convert_folder(source, tmp_path / "plain-ftw")
    convert_folder(released, tmp_path / "released-ftw")
    with FtwModel.open(tmp_path / "released-ftw") as model:
        found = {part.format for bank in model.index.banks for part in bank.parts}
        assert formats <= found | {item.format for item in model.index.tensors}
    truth = load_engine(tmp_path / "plain-ftw").runner.logits(PROMPT)
    logits = load_engine(tmp_path / "released-ftw").runner.logits(PROMPT)
    assert float(truth.std()) > 0.1
    assert float((logits - truth).abs().max()) <= 1e-4


def test_drafting_layers_are_left_out_with_a_note(tmp_path: Path) -> None:
    folder = build_hybrid("deepseek_v3", tmp_path / "hf")
    convert_folder(folder, tmp_path / "plain")
    weights = load_file(folder / "model.safetensors")
    last = {n: w for n, w in weights.items() if n.startswith("model.layers.2.")}
    extra = {n.replace("layers.2.", "layers.3."): w.clone() for n, w in last.items()}
    stem = "model.layers.3."
    for name in ("enorm", "hnorm", "shared_head.norm"):
        extra[f"{stem}{name}.weight"] = torch.ones(64)
    extra[stem + "eh_proj.weight"] = torch.ones(64, 128)
    extra[stem + "shared_head.head.weight"] = torch.ones(320, 64)
    extra[stem + "embed_tokens.weight"] = torch.ones(320, 64)
    save_file({**weights, **extra}, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    result = convert_folder(folder, tmp_path / "drafting")
    same_model(tmp_path / "plain", tmp_path / "drafting")
    assert any("multi-token prediction" in note for note in result["notes"])


def test_a_shared_wrapper_is_told_by_the_model_inside(tmp_path: Path) -> None:
    inner = config_of("mistral4", tmp_path)
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    assert family_of_config({**outer, "text_config": inner}).name == "mistral4"


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        ("deepseek_v3", {"n_group": 3}, "n_group 3"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias"),
        ("deepseek_v3", {"first_k_dense_replace": -1}, "first_k_dense_replace"),
        ("deepseek_v2", {"topk_method": "random"}, "topk_method 'random'"),
        ("glm_moe_dsa", {"indexer_types": ["shared"] * 5}, "first layer has no indexer"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "for 5 layers"),
        ("deepseek_v4", {"o_groups": 3}, "o_groups 3"),
        ("deepseek_v4", {"layer_types": None, "compress_ratios": [5]}, "compress_ratios"),
        ("deepseek_v4", {"scoring_func": "tanh"}, "scoring_func 'tanh'"),
        ("gemma4", {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input 256"),
        ("gemma4", {"num_kv_shared_layers": 2}, "num_kv_shared_layers 2"),
        ("mimo_v2_flash", {"v_head_dim": 32}, "v_head_dim 32"),
        ("longcat_flash", {"num_layers": 0, "num_hidden_layers": None}, "num_layers"),
    ],
)
def test_bad_values_are_refused_by_name(
    family: str, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    config = config_of(family, tmp_path)
    with pytest.raises(LoadError, match=named):
        family_of_config(config).read_config(config | change)
