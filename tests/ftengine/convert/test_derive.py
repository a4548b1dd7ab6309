"""Upcycling: the same function as the dense model, the same bytes for ever."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from ftengine.convert.derive import derived_router
from ftengine.convert.local import convert_folder
from ftengine.convert.protocol import Derive
from ftengine.errors import LoadError
from ftengine.loader.ftw import FtwModel
from ftengine.models.families import family_named
from tests.fakes import tiny_models as tiny
from tests.ftengine.convert.test_lossless import dense_values, expert_values

UPCYCLE = Derive("upcycle", 8, 2)


def splitmix64(state: int) -> int:
    """The output function, in plain integers."""
    mask = (1 << 64) - 1
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return state ^ (state >> 31)


def test_the_router_follows_its_formula() -> None:
    derive = Derive("upcycle", 3, 1, seed=7, router_scale=4.0)
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    expected = []
    for i in range(3 * 16):
        hashed = splitmix64((splitmix64((7 + golden * 6) & mask) + golden * (i + 1)) & mask)
        unit = (hashed >> 11) / 2**53
        expected.append(4.0 * (3 / 16) ** 0.5 * (2 * unit - 1))
    values = derived_router(derive, layer=5, hidden=16)
    np.testing.assert_allclose(values.reshape(-1), np.array(expected), rtol=1e-6)


def test_the_router_bytes_never_change() -> None:
    digest = hashlib.sha256(derived_router(UPCYCLE, 0, 576).tobytes()).hexdigest()
    assert digest == "99901e3b8bc36cde17092eff2db7defe653b206ec34ea7d64875cdbff9314d2d"


def test_the_router_spreads_tokens_over_all_experts() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((4000, 576)).astype(np.float32)
    logits = hidden @ derived_router(UPCYCLE, 3, 576).T
    top = np.argsort(-logits, axis=1)[:, :2]
    share = np.bincount(top.reshape(-1), minlength=8) / top.size
    assert share.min() > 0.06
    assert logits.std() == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_every_expert_is_the_dense_mlp(kind: str, tmp_path: Path) -> None:
    if kind == "gguf":
        source = tiny.build_tiny_gguf("llama", tmp_path / "t.gguf", types={"matrix": "q4_1"})
    else:
        source = tiny.build_tiny("llama", tmp_path / "src")
    convert_folder(source, tmp_path / "dense")
    result = convert_folder(source, tmp_path / "moe", derive=UPCYCLE)
    again = convert_folder(source, tmp_path / "again", derive=UPCYCLE)
    assert result == again
    assert result["family"] == "mixtral"
    assert any("upcycled: 8 copies" in note for note in result["notes"])
    assert result["details"]["family"] == "mixtral"
    info = result["model_info"]
    assert info["general.architecture"] == "mixtral"
    assert (info["mixtral.context_length"], info["mixtral.expert_used_count"]) == (512, 2)
    assert not [key for key in info if key.startswith("llama.")]
    with FtwModel.open(tmp_path / "dense") as dense, FtwModel.open(tmp_path / "moe") as moe:
        config = family_named("mixtral").read_config(moe.config)
        original = family_named("llama").read_config(dense.config)
        assert config.num_experts == 8
        assert config.layers[0].attention == original.layers[0].attention
        assert config.norm_eps == original.norm_eps
        for layer in range(2):
            values = expert_values(moe, layer)
            for part in ("gate", "up", "down"):
                expected = dense_values(dense, f"layers.{layer}.mlp.{part}")
                for expert in range(8):
                    np.testing.assert_array_equal(values[part][expert], expected)
            router = dense_values(moe, f"layers.{layer}.router")
            np.testing.assert_array_equal(router, derived_router(UPCYCLE, layer, 64))
        np.testing.assert_array_equal(
            dense_values(moe, "layers.1.attn.k"), dense_values(dense, "layers.1.attn.k")
        )
    index = json.loads((tmp_path / "moe" / "index.json").read_text())
    origin = index["banks"][0]["origin"]["derived"]
    assert origin["kind"] == "upcycle"
    assert len(origin["sources"]) >= 1


def test_another_seed_or_count_is_another_model(tmp_path: Path) -> None:
    source = tiny.build_tiny("llama", tmp_path / "src")
    recipes = (UPCYCLE, Derive("upcycle", 8, 2, seed=1), Derive("upcycle", 4, 2), None)
    ids = {
        convert_folder(source, tmp_path / str(n), derive=recipe)["ftw_id"]
        for n, recipe in enumerate(recipes)
    }
    assert len(ids) == len(recipes)


@pytest.mark.parametrize("family", ["qwen3", "mixtral", "qwen3_moe"])
def test_other_families_cannot_be_upcycled(family: str, tmp_path: Path) -> None:
    source = tiny.build_tiny(family, tmp_path / "src")
    with pytest.raises(LoadError, match=f"only a llama model .* this is {family}"):
        convert_folder(source, tmp_path / "ftw", derive=UPCYCLE)


def test_active_parameters_count_the_chosen_experts_only(tmp_path: Path) -> None:
    source = tiny.build_tiny("llama", tmp_path / "src")
    dense = convert_folder(source, tmp_path / "a")["details"]["parameter_count"]
    details = convert_folder(source, tmp_path / "b", derive=UPCYCLE)["details"]
    mlp, routers = 2 * 3 * 96 * 64, 2 * 8 * 64
    assert details["parameter_count"] == dense + 7 * mlp + routers
    assert details["active_parameter_count"] == dense + mlp + routers
