"""Conversion moves bytes and never changes a value."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from ftengine.convert.bank_plan import ROWS_LAYOUT
from ftengine.convert.local import convert_folder
from ftengine.loader.ftw import FtwBank, FtwModel, FtwTensor
from ftengine.quant import format_named, panel32
from tests.fakes import tiny_gguf
from tests.fakes import tiny_models as tiny


def raw_bytes(model: FtwModel, entry: FtwTensor | FtwBank) -> np.ndarray:
    out = bytearray(entry.bytes)
    model.read(entry, memoryview(out))
    return np.frombuffer(out, np.uint8)


def dense_values(model: FtwModel, name: str) -> np.ndarray:
    entry = model.index.tensor(name)
    assert entry is not None, name
    fmt = format_named(entry.format)
    rows = raw_bytes(model, entry).reshape(*entry.shape[:-1], -1)
    return fmt.dequantize(rows).reshape(entry.shape)


def expert_values(model: FtwModel, layer: int) -> dict[str, np.ndarray]:
    """gate, up [E, I, D] and down [E, D, I] of a bank."""
    bank = next(item for item in model.index.banks if item.name == f"layers.{layer}.experts")
    rows = raw_bytes(model, bank).reshape(bank.num_experts, bank.row_bytes)
    out: dict[str, list[np.ndarray]] = {"gate": [], "up": [], "down": []}
    for row in rows:
        for part in bank.parts:
            data = row[part.offset : part.offset + part.bytes]
            fmt = format_named(part.format)
            count, cols = part.shape
            if part.layout == ROWS_LAYOUT:
                plain = data.reshape(count, -1)
            elif part.layout.endswith(".pair"):
                plain = np.concatenate(panel32.unpack_pair(fmt, data, count // 2, cols))
            else:
                plain = panel32.unpack(fmt, data, count, cols)
            values = fmt.dequantize(plain)
            if part.name == "down":
                out["down"].append(values)
            else:
                out["gate"].append(values[: count // 2])
                out["up"].append(values[count // 2 :])
    return {name: np.stack(values) for name, values in out.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("family", "fused"),
    [
        ("llama", False),
        ("qwen3", False),
        ("mixtral", False),
        ("mixtral", True),
        ("qwen3_moe", False),
        ("qwen3_moe", True),
    ],
)
def test_safetensors_values_survive(family: str, fused: bool, dtype: str, tmp_path: Path) -> None:
    folder = tiny.build_tiny(family, tmp_path / "src", dtype=dtype, fused=fused, num_shards=3)
    sizes = tiny.sizes_of(family)
    result = convert_folder(folder, tmp_path / "ftw")
    fmt = format_named({"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[dtype])
    rounded = {
        name: fmt.dequantize(fmt.quantize(values.reshape(1, -1))).reshape(values.shape)
        for name, values in tiny.hub_weights(family, sizes).items()
    }
    assert result["family"] == family
    with FtwModel.open(tmp_path / "ftw", check="checksums") as model:
        np.testing.assert_array_equal(
            dense_values(model, "layers.1.attn.q"),
            rounded["model.layers.1.self_attn.q_proj.weight"],
        )
        np.testing.assert_array_equal(dense_values(model, "norm"), rounded["model.norm.weight"])
        assert (model.index.tensor("head") is None) == sizes.tied
        assert model.config["tie_word_embeddings"] == sizes.tied
        if family in ("mixtral", "qwen3_moe"):
            check_experts(model, family, rounded, sizes)
        else:
            np.testing.assert_array_equal(
                dense_values(model, "layers.1.mlp.down"),
                rounded["model.layers.1.mlp.down_proj.weight"],
            )


def check_experts(
    model: FtwModel, family: str, weights: dict[str, np.ndarray], sizes: tiny.TinySizes
) -> None:
    block, names = (
        ("block_sparse_moe", ("w1", "w3", "w2"))
        if family == "mixtral"
        else ("mlp", ("gate_proj", "up_proj", "down_proj"))
    )
    for layer in range(sizes.layers):
        values = expert_values(model, layer)
        np.testing.assert_array_equal(
            dense_values(model, f"layers.{layer}.router"),
            weights[f"model.layers.{layer}.{block}.gate.weight"],
        )
        for part, name in zip(("gate", "up", "down"), names, strict=True):
            for expert in range(sizes.num_experts):
                expected = weights[f"model.layers.{layer}.{block}.experts.{expert}.{name}.weight"]
                np.testing.assert_array_equal(values[part][expert], expected)


@pytest.mark.parametrize(
    ("arch", "family", "types"),
    [
        ("llama", "llama", {"matrix": "q4_1", "embed": "q8_0"}),
        ("qwen3", "qwen3", {"matrix": "q8_0"}),
        ("qwen3moe", "qwen3_moe", {"matrix": "bf16", "experts": "q4_0"}),
        ("qwen3moe", "qwen3_moe", {"matrix": "q8_0", "experts": "q4_k"}),
        ("qwen3moe", "qwen3_moe", {"matrix": "f16", "experts": "q6_k"}),
        ("llama", "mixtral", {"matrix": "q8_0", "experts": "q5_1"}),
        ("qwen3moe", "qwen3_moe", {"matrix": "q8_0", "experts": "mxfp4_gguf"}),
    ],
)
def test_gguf_values_equal_the_reference_reader(
    arch: str, family: str, types: dict[str, str], tmp_path: Path
) -> None:
    wide = types.get("experts", "").endswith("_k")
    changes = {"hidden": 256, "expert_inter": 256} if wide else {}
    sizes = tiny.sizes_of(family, **changes)
    path = tmp_path / "tiny.gguf"
    tiny.build_tiny_gguf(arch, path, types=types, sizes=sizes, family=family)
    result = convert_folder(path, tmp_path / "ftw")
    assert result["family"] == family
    reference = {
        tensor.name: dequantize(tensor.data, tensor.tensor_type).reshape(
            [int(size) for size in tensor.shape[::-1]]
        )
        for tensor in gguf.GGUFReader(path).tensors
    }
    with FtwModel.open(tmp_path / "ftw", check="checksums") as model:
        query, key = dense_values(model, "layers.0.attn.q"), dense_values(model, "layers.0.attn.k")
        if arch == "llama":
            query = tiny_gguf.permute(query, sizes.heads)
            key = tiny_gguf.permute(key, sizes.kv_heads)
        np.testing.assert_array_equal(query, reference["blk.0.attn_q.weight"])
        np.testing.assert_array_equal(key, reference["blk.0.attn_k.weight"])
        np.testing.assert_array_equal(dense_values(model, "embed"), reference["token_embd.weight"])
        for bank in model.index.banks:
            layer = int(bank.name.split(".")[1])
            for part, values in expert_values(model, layer).items():
                np.testing.assert_array_equal(
                    values, reference[f"blk.{layer}.ffn_{part}_exps.weight"]
                )
    assert not result["notes"]


def test_gguf_and_safetensors_of_one_model_hold_the_same_weights(tmp_path: Path) -> None:
    tiny.build_tiny("llama", tmp_path / "hf")
    tiny.build_tiny_gguf("llama", tmp_path / "tiny.gguf")
    convert_folder(tmp_path / "hf", tmp_path / "a")
    convert_folder(tmp_path / "tiny.gguf", tmp_path / "b")
    with FtwModel.open(tmp_path / "a") as first, FtwModel.open(tmp_path / "b") as second:
        assert [t.name for t in first.index.tensors] == [t.name for t in second.index.tensors]
        assert first.index.shards == second.index.shards
        keys = ("num_attention_heads", "head_dim", "rms_norm_eps", "rope_theta", "eos_token_id")
        assert {k: first.config[k] for k in keys} == {k: second.config[k] for k in keys}


def test_the_id_is_deterministic_and_is_the_hash_of_the_index(tmp_path: Path) -> None:
    import hashlib

    folder = tiny.build_tiny("qwen3_moe", tmp_path / "src", num_shards=2)
    first = convert_folder(folder, tmp_path / "a")
    second = convert_folder(folder, tmp_path / "b")
    again = convert_folder(folder, tmp_path / "a")
    index = (tmp_path / "a" / "index.json").read_bytes()
    assert first == second == again
    assert first["ftw_id"] == hashlib.sha256(index).hexdigest()
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "index.json",
        "source.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "weights-00000.ftw",
    ]


def test_origins_lead_back_to_the_source_bytes(tmp_path: Path) -> None:
    folder = tiny.build_tiny("llama", tmp_path / "src", num_shards=2)
    convert_folder(folder, tmp_path / "ftw")
    index = json.loads((tmp_path / "ftw" / "index.json").read_text())
    sources = json.loads((tmp_path / "ftw" / "source.json").read_text())["sources"]
    shard = (tmp_path / "ftw" / index["shards"][0]["file"]).read_bytes()
    for entry in index["tensors"]:
        found = b""
        for origin in entry["origin"]:
            data = (folder / sources[origin["file"]]["name"]).read_bytes()
            found += data[origin["start"] : origin["end"]]
        assert found == shard[entry["offset"] : entry["offset"] + entry["bytes"]], entry["name"]
        assert entry["offset"] % 4096 == 0


def test_a_head_beside_a_tied_embedding_is_left_out(tmp_path: Path) -> None:
    folder = tiny.build_tiny(
        "llama", tmp_path / "src", config_changes={"tie_word_embeddings": True}
    )
    convert_folder(folder, tmp_path / "ftw")
    with FtwModel.open(tmp_path / "ftw") as model:
        assert model.index.tensor("head") is None


def test_a_missing_head_means_tied(tmp_path: Path) -> None:
    sizes = tiny.sizes_of("llama", tied=True)
    changes = {"tie_word_embeddings": False}
    folder = tiny.build_tiny("llama", tmp_path / "src", sizes=sizes, config_changes=changes)
    convert_folder(folder, tmp_path / "ftw")
    with FtwModel.open(tmp_path / "ftw") as model:
        assert model.config["tie_word_embeddings"] is True
