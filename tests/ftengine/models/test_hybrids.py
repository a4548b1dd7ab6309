"""Families with states and windows: every dialect of names and configs, and restored states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ftengine.cache.state_pool import StatePool
from ftengine.convert.local import convert_folder
from ftengine.device.torch_device import page_aligned
from ftengine.errors import LoadError
from ftengine.loader.ftw import FtwModel
from ftengine.models.build import state_shapes
from ftengine.models.families import family_of_config
from ftengine.models.spec import AttentionSpec, DeltaSpec, ModelConfig
from ftengine.protocol import GenerateRequest
from ftengine.runtime.engine import Engine
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.sequence import Sequence
from tests.fakes.tiny_hybrids import build_hybrid
from tests.ftengine.parity.tiny_engines import greedy, load_engine, random_ids

PROMPT = random_ids(75, seed=1)
SAVED_OTHERWISE = ("qwen3_next", "lfm2_moe", "granitemoehybrid")


def same_model(first: Path, second: Path) -> None:
    """Two FTW folders hold the same weights under the same names."""
    with FtwModel.open(first) as one, FtwModel.open(second) as two:
        assert [item.name for item in one.index.tensors] == [t.name for t in two.index.tensors]
        assert one.index.shards == two.index.shards


@pytest.mark.parametrize("family", SAVED_OTHERWISE)
def test_names_of_the_hub_and_of_the_library_give_the_same_model(
    family: str, tmp_path: Path
) -> None:
    for kind in ("hub", "library"):
        folder = build_hybrid(family, tmp_path / kind, hub_names=kind == "hub")
        convert_folder(folder, tmp_path / f"{kind}-ftw")
    same_model(tmp_path / "hub-ftw", tmp_path / "library-ftw")


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "gemma3"])
def test_a_wrapper_gives_its_language_model(family: str, tmp_path: Path) -> None:
    for wrapped in (False, True):
        folder = build_hybrid(family, tmp_path / str(wrapped), wrapped=wrapped)
        convert_folder(folder, tmp_path / f"{wrapped}-ftw")
    same_model(tmp_path / "False-ftw", tmp_path / "True-ftw")


def released_config(config: dict[str, Any], family: str) -> dict[str, Any]:
    """The keys that files on the hub have, of a config as the library writes it."""
    value = {key: item for key, item in config.items() if key not in ("rope_parameters", "dtype")}
    rope = config.get("rope_parameters") or {}
    if family == "gemma3":
        del value["layer_types"]
        scaling = {"rope_type": "linear", "factor": 8.0}
        return value | {
            "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": scaling,
            "sliding_window_pattern": 2,
        }
    if family == "granitemoehybrid":
        names = {"linear_attention": "mamba", "full_attention": "attention"}
        value["layer_types"] = [names[kind] for kind in config["layer_types"]]
    if family in ("qwen3_next", "qwen3_5"):
        del value["layer_types"]
        value["full_attention_interval"] = 4
    if family == "lfm2_moe":
        value["tie_embedding"] = value.pop("tie_word_embeddings")
    rope = dict(rope)
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            value[key] = rope.pop(key)
    kind = rope.pop("rope_type", "default")
    value["rope_scaling"] = None if kind == "default" else {**rope, "rope_type": kind}
    return value


@pytest.mark.parametrize(
    "family", ["gpt_oss", "qwen3_next", "qwen3_5", "gemma3", "lfm2_moe", "granitemoehybrid"]
)
def test_both_dialects_of_a_config_read_alike(family: str, tmp_path: Path) -> None:
    folder = build_hybrid(family, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    found = family_of_config(config)
    assert found.name == family
    assert found.read_config(released_config(config, family)) == found.read_config(config)


def mxfp4_copy(source: Path, target: Path) -> Path:
    """Experts as gpt-oss releases them: blocks and scales, rows by output channel; plus a truth.

    The source's expert weights are replaced by what the codes stand for.
    """
    target.mkdir()
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
    table = np.concatenate([table, -table])
    rng = np.random.default_rng(5)
    tensors = load_file(source / "model.safetensors")
    released: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            released[name] = weight
            continue
        experts, cols, rows = weight.shape
        codes = rng.integers(0, 16, (experts, rows, cols // 32, 32))
        scales = rng.integers(122, 126, (experts, rows, cols // 32))
        packed = (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)
        released[name + "_blocks"] = torch.from_numpy(packed)
        released[name + "_scales"] = torch.from_numpy(scales.astype(np.uint8))
        values = (table[codes] * 2.0 ** (scales - 127.0)[..., None]).reshape(experts, rows, cols)
        tensors[name] = torch.from_numpy(values.astype(np.float32)).transpose(1, 2).contiguous()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    save_file(released, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_gpt_oss_as_released_equals_its_values(tmp_path: Path) -> None:
    plain = build_hybrid("gpt_oss", tmp_path / "plain")
    released = mxfp4_copy(plain, tmp_path / "released")
    convert_folder(plain, tmp_path / "plain-ftw")
    result = convert_folder(released, tmp_path / "released-ftw")
    assert result["details"]["quantization_level"] == "MXFP4"
    assert any("reference path" in note for note in result["notes"])
    with FtwModel.open(tmp_path / "released-ftw") as model:
        bank = model.index.banks[0]
        assert [(part.name, part.format) for part in bank.parts] == [
            ("gate_up", "mxfp4"),
            ("down", "mxfp4"),
            ("gate_up_bias", "f32"),
            ("down_bias", "f32"),
        ]
    truth = load_engine(tmp_path / "plain-ftw").runner.logits(PROMPT)
    found = load_engine(tmp_path / "released-ftw").runner.logits(PROMPT)
    assert float(truth.std()) > 0.1
    assert float((found - truth).abs().max()) <= 1e-4


def test_blocks_without_scales_are_refused(tmp_path: Path) -> None:
    released = mxfp4_copy(build_hybrid("gpt_oss", tmp_path / "plain"), tmp_path / "released")
    tensors = load_file(released / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, released / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"layers\.1.*down_proj_blocks .*without .*_scales"):
        convert_folder(released, tmp_path / "ftw")


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_5_moe"])
def test_slots_of_a_device_give_the_tokens_of_the_cpu(family: str, tmp_path: Path) -> None:
    """Biases travel with an expert's row; shared experts are added once whatever the strategy."""
    convert_folder(build_hybrid(family, tmp_path / "hf"), tmp_path / "ftw")
    prompts = [random_ids(count, seed=count) for count in (5, 30)]
    expected = [item.token_ids for item in greedy(load_engine(tmp_path / "ftw"), prompts, 10)]
    for strategy in ("fetch", "split", "resident"):
        slots = 0 if strategy == "resident" else 6
        engine = load_engine(
            tmp_path / "ftw",
            device="emulated",
            strategy=strategy,
            expert_slots=slots,
            device_bytes=1 << 30,
        )
        assert [item.token_ids for item in greedy(engine, prompts, 10)] == expected, strategy
        engine.close()


def model_of(engine: Engine) -> ModelConfig:
    with FtwModel.open(engine.config.ftw) as model:
        return family_of_config(model.config).read_config(model.config)


def sequence_of(tokens: tuple[int, ...], slot: int, first_page: int) -> Sequence:
    pages = list(range(first_page, first_page + 8))
    return Sequence(
        request=GenerateRequest("a", tokens),
        order=0,
        arrival_s=0.0,
        limit_tokens=len(tokens),
        stop_ids=frozenset(),
        tokens=list(tokens),
        pages=pages,
        state_slot=slot,
    )


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2_moe", "granitemoehybrid"])
def test_a_restored_checkpoint_goes_on_as_if_nothing_had_happened(
    family: str, tmp_path: Path
) -> None:
    convert_folder(build_hybrid(family, tmp_path / "hf"), tmp_path / "ftw")
    engine = load_engine(tmp_path / "ftw", parallel=3)
    runner = engine.runner
    states = runner.states
    assert states is not None
    sequence = sequence_of(PROMPT, slot=1, first_page=0)

    def run(start: int, count: int) -> torch.Tensor:
        last = start + count == len(PROMPT)
        return runner.run(Batch((Work(sequence, start, count, samples=last),))).clone()

    run(0, 41)
    states.copy(1, 0)
    expected = run(41, 34)
    other = sequence_of(random_ids(60, seed=9), slot=1, first_page=8)
    runner.run(Batch((Work(other, 0, 60, samples=False),)))
    states.copy(0, 2)
    sequence.state_slot = 2
    assert torch.equal(run(41, 34), expected)
    sequence.state_slot = 1
    assert not torch.equal(run(41, 34), expected)  # the state matters


def test_memory_of_states_is_told_before_and_taken(tmp_path: Path) -> None:
    result = convert_folder(build_hybrid("qwen3_next", tmp_path / "hf"), tmp_path / "ftw")
    engine = load_engine(tmp_path / "ftw", parallel=2)
    config = model_of(engine)
    kinds = [type(layer.mixer) for layer in config.layers]
    assert kinds == [DeltaSpec, DeltaSpec, DeltaSpec, AttentionSpec]
    assert result["kv_bytes_per_token"] == 2 * 2 * 2 * 16
    assert result["kv_q8_0_bytes_per_token"] == result["kv_bytes_per_token"]  # heads of 16 numbers
    one = 3 * (3 * (2 * 2 * 8 + 4 * 16) + 4 * 8 * 16)
    assert result["state_bytes_per_sequence"] == config.state_bytes_per_sequence == 4 * one
    pool = StatePool(state_shapes(config), 2, page_aligned)
    assert 4 * one <= pool.bytes_per_slot <= 1.1 * 4 * one
    assert any("Gated DeltaNet" in note for note in engine.info.notes)


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        ("qwen3_5", {"linear_num_value_heads": 3}, "linear_num_value_heads 3"),
        ("gpt_oss", {"layer_types": ["strange"] * 4}, "layer_types holds 'strange'"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3", {"hidden_activation": "relu"}, "hidden_activation"),
        ("granitemoehybrid", {"mamba_n_heads": 7}, "mamba_n_heads 7"),
        ("granitemoehybrid", {"time_step_limit": [0]}, "time_step_limit"),
        ("granitemoehybrid", {"logits_scaling": 0}, "logits_scaling"),
        ("lfm2_moe", {"conv_L_cache": -3}, "conv_L_cache"),
    ],
)
def test_bad_values_are_refused_by_name(
    family: str, change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    config = json.loads((build_hybrid(family, tmp_path) / "config.json").read_text())
    with pytest.raises(LoadError, match=named):
        family_of_config(config).read_config(config | change)
