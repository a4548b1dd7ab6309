"""Quantising converted models and merging adapters into them: bytes, refusals, determinism."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftengine.convert.local import LocalLink, convert_folder
from ftengine.convert.quantize import TARGETS, target_format, writable
from ftengine.convert.remake import RemakeJob, run_remake
from ftengine.errors import LoadError, RequestError
from ftengine.loader.ftw import FtwBank, FtwModel, FtwTensor, verify_blocks
from ftengine.quant import format_named, panel32
from ftengine.quant.base import Floats
from ftman import faults
from tests.fakes import adapters
from tests.fakes.tiny_models import build_tiny, build_tiny_gguf, hub_weights, sizes_of

Q, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"
K = "model.layers.1.self_attn.k_proj.weight"
GGUF_NAMES = {Q: "blk.0.attn_q.weight", K: "blk.1.attn_k.weight", DOWN: "blk.1.ffn_down.weight"}


def remake(base: Path, target: Path, quantize: str = "", **adapter: Path) -> dict[str, Any]:
    paths = {path.name: path for path in adapter.values()}
    return run_remake(RemakeJob(base, target, quantize, paths), LocalLink({}))


def values_of(folder: Path, name: str) -> Floats:
    """A dense tensor as float32."""
    with FtwModel.open(folder) as model:
        tensor = model.index.tensor(name)
        assert tensor is not None
        data = bytearray(tensor.bytes)
        model.read(tensor, memoryview(data))
    raw = np.frombuffer(data, np.uint8).reshape(tensor.shape[0], -1)
    return format_named(tensor.format).dequantize(raw)


def regions(folder: Path) -> tuple[tuple[FtwTensor, ...], tuple[FtwBank, ...]]:
    with FtwModel.open(folder) as model:
        assert verify_blocks(model) == []
        return model.index.tensors, model.index.banks


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense")
    convert_folder(build_tiny("llama", folder / "hf"), folder / "ftw")
    return folder / "ftw"


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moe")
    convert_folder(build_tiny("mixtral", folder / "hf"), folder / "ftw")
    return folder / "ftw"


@pytest.mark.parametrize("quantize", list(TARGETS))
def test_a_dense_model_quantised_is_the_encoding_of_its_rows(
    dense: Path, tmp_path: Path, quantize: str
) -> None:
    result = remake(dense, tmp_path / "out", quantize)
    assert result["details"]["quantization_level"] == quantize.upper()
    tensors, _ = regions(tmp_path / "out")
    formats = {tensor.name: tensor.format for tensor in tensors}
    assert formats["layers.0.attn.q"] == TARGETS[quantize].name
    assert formats["embed"] == "q8_0"
    assert formats["layers.0.attn_norm"] == "f32"
    fmt = TARGETS[quantize]
    wanted = fmt.dequantize(fmt.quantize(values_of(dense, "layers.1.mlp.up")))
    np.testing.assert_array_equal(values_of(tmp_path / "out", "layers.1.mlp.up"), wanted)
    source = json.loads((tmp_path / "out" / "source.json").read_text())
    assert source["derive"]["quantize"] == quantize
    listed = {item["name"]: item["type"] for item in source["tensors"]}
    assert listed[Q] == fmt.name
    assert remake(dense, tmp_path / "again", quantize)["ftw_id"] == result["ftw_id"]


def test_experts_are_quantised_row_by_row_and_routers_stay(moe: Path, tmp_path: Path) -> None:
    remake(moe, tmp_path / "out", "q4_0")
    (before, banks), (after, made) = regions(moe), regions(tmp_path / "out")
    assert {t.format for t in after if t.name.endswith("router")} == {
        t.format for t in before if t.name.endswith("router")
    }
    part, old = made[1].part("down"), banks[1].part("down")
    assert (part.format, part.shape) == ("q4_0", old.shape)
    with FtwModel.open(moe) as one, FtwModel.open(tmp_path / "out") as two:
        rows = []
        for model, bank, item in ((one, banks[1], old), (two, made[1], part)):
            data = bytearray(bank.bytes)
            model.read(bank, memoryview(data))
            start = 2 * bank.row_bytes + item.offset
            packed = np.frombuffer(data, np.uint8)[start : start + item.bytes]
            rows.append(panel32.unpack(item.format, packed, *item.shape))
    fmt = format_named("q4_0")
    values = format_named(old.format).dequantize(rows[0])
    np.testing.assert_array_equal(rows[1], fmt.quantize(values))


def test_mxfp4_takes_the_nearest_value_and_even_codes_on_ties() -> None:
    fmt = writable("mxfp4_gguf")
    values = np.zeros((1, 32), np.float32)
    values[0, :8] = [6.0, -5.0, 2.5, 0.25, 0.75, 1.25, 3.5, -0.2]
    shown = fmt.dequantize(fmt.quantize(values))[0, :8]
    assert shown.tolist() == [6.0, -4.0, 2.0, 0.0, 1.0, 1.0, 4.0, 0.0]
    rng = np.random.default_rng(3)
    many = rng.standard_normal((64, 256)).astype(np.float32) * np.float32(1e-3)
    back = fmt.dequantize(fmt.quantize(many))
    assert np.abs(back - many).max() <= np.abs(many).max() / 4
    assert fmt.quantize(back).tobytes() == fmt.quantize(many).tobytes()
    assert not fmt.dequantize(fmt.quantize(np.zeros((2, 64), np.float32))).any()


@pytest.mark.parametrize("scale", [{}, {"use_rslora": True}])
def test_a_peft_adapter_is_merged(dense: Path, tmp_path: Path, scale: dict[str, Any]) -> None:
    sizes = sizes_of("llama")
    weights = hub_weights("llama", sizes)
    pairs = adapters.random_pairs({name: weights[name].shape for name in (Q, DOWN)})
    found = adapters.write_peft(tmp_path / "peft", pairs, **scale)
    result = run_remake(RemakeJob(dense, tmp_path / "out", "", found), LocalLink({}))
    factor = adapters.ALPHA / (adapters.RANK**0.5 if scale else adapters.RANK)
    wanted = adapters.merged(weights, pairs, factor)
    for name, ours in ((Q, "layers.0.attn.q"), (DOWN, "layers.1.mlp.down")):
        np.testing.assert_allclose(values_of(tmp_path / "out", ours), wanted[name], rtol=1e-6)
        assert not np.array_equal(values_of(dense, ours), wanted[name])
    np.testing.assert_array_equal(
        values_of(tmp_path / "out", "layers.0.attn.v"), values_of(dense, "layers.0.attn.v")
    )
    assert any("LoRA adapter over 2 matrices" in note for note in result["notes"])


@pytest.mark.parametrize("base", ["safetensors", "gguf"])
def test_a_gguf_adapter_is_merged_in_our_row_order(tmp_path: Path, base: str) -> None:
    sizes = sizes_of("llama")
    weights = hub_weights("llama", sizes)
    source = (
        build_tiny("llama", tmp_path / "hf")
        if base == "safetensors"
        else build_tiny_gguf("llama", tmp_path / "base.gguf")
    )
    convert_folder(source, tmp_path / "ftw")
    for name, heads in ((Q, sizes.heads), (K, sizes.kv_heads), (DOWN, 0)):
        pairs = adapters.random_pairs({name: weights[name].shape})
        path = tmp_path / f"{GGUF_NAMES[name]}.gguf"
        adapters.write_gguf_lora(path, pairs, GGUF_NAMES, heads)
        out = tmp_path / f"out-{path.stem}"
        remake(tmp_path / "ftw", out, lora=path)
        ours = {Q: "layers.0.attn.q", K: "layers.1.attn.k", DOWN: "layers.1.mlp.down"}[name]
        wanted = adapters.merged(weights, pairs, adapters.ALPHA / adapters.RANK)[name]
        np.testing.assert_allclose(values_of(out, ours), wanted, rtol=1e-6, atol=1e-7)


def test_an_adapter_and_a_quantisation_go_together(dense: Path, tmp_path: Path) -> None:
    weights = hub_weights("llama", sizes_of("llama"))
    pairs = adapters.random_pairs({Q: weights[Q].shape})
    found = adapters.write_peft(tmp_path / "peft", pairs)
    run_remake(RemakeJob(dense, tmp_path / "out", "q8_0", found), LocalLink({}))
    wanted = adapters.merged(weights, pairs, adapters.ALPHA / adapters.RANK)[Q]
    fmt = format_named("q8_0")
    shown = fmt.dequantize(fmt.quantize(wanted))
    np.testing.assert_allclose(values_of(tmp_path / "out", "layers.0.attn.q"), shown, atol=2e-3)


def test_quantised_models_are_refused(dense: Path, tmp_path: Path) -> None:
    remake(dense, tmp_path / "q8", "q8_0")
    with pytest.raises(LoadError, match="only supported for F16, BF16 and F32 models"):
        remake(tmp_path / "q8", tmp_path / "q4", "q4_0")
    weights = hub_weights("llama", sizes_of("llama"))
    found = adapters.write_peft(
        tmp_path / "peft",
        adapters.random_pairs({Q: weights[Q].shape}),
    )
    with pytest.raises(LoadError, match=r"merged into F16, BF16 and F32 weights; layers.0.attn.q"):
        run_remake(RemakeJob(tmp_path / "q8", tmp_path / "x", "", found), LocalLink({}))
    with pytest.raises(RequestError, match="is not empty"):
        remake(dense, tmp_path / "q8", "q4_0")


@pytest.mark.parametrize(
    ("name", "shape", "settings", "text"),
    [
        (Q, (64, 32), {}, "it was made for another model"),
        ("model.layers.9.self_attn.q_proj.weight", (64, 64), {}, "does not have"),
        ("model.embed_tokens.weight.weight", (64, 64), {}, "changes nothing that can be merged"),
        (Q, (64, 64), {"use_dora": True}, "use_dora = True is not built"),
        (Q, (64, 64), {"peft_type": "LOHA"}, "peft_type 'LOHA' is not built; LORA is"),
        (Q, (64, 64), {"bias": "all"}, "bias = 'all' is not built"),
        (Q, (64, 64), {"modules_to_save": ["lm_head"]}, "modules_to_save"),
        (Q, (64, 64), {"lora_alpha": "big"}, "lora_alpha must be a number"),
    ],
)
def test_adapters_that_cannot_be_merged_say_why(
    dense: Path, tmp_path: Path, name: str, shape: tuple[int, int], settings: Any, text: str
) -> None:
    found = adapters.write_peft(tmp_path / "peft", adapters.random_pairs({name: shape}), **settings)
    with pytest.raises(Exception, match=text):
        run_remake(RemakeJob(dense, tmp_path / "out", "", found), LocalLink({}))
    assert not (tmp_path / "out").exists()


def test_a_model_file_is_no_adapter(dense: Path, tmp_path: Path) -> None:
    path = build_tiny_gguf("llama", tmp_path / "model.gguf")
    with pytest.raises(LoadError, match=r"no LoRA adapter: general\.type"):
        remake(dense, tmp_path / "out", lora=path)
    target = tmp_path / "adapter_model.safetensors"
    adapters.write_peft(tmp_path / "p", adapters.random_pairs({Q: (64, 64)}))
    (tmp_path / "p" / "adapter_model.safetensors").rename(target)
    with pytest.raises(LoadError, match=r"adapter_config.json is missing"):
        remake(dense, tmp_path / "out", lora=target)


def test_small_and_odd_matrices_stay() -> None:
    assert target_format("q4_0", "layers.0.x", (4, 64), "bf16") == "bf16"
    assert target_format("q4_0", "layers.0.x", (64, 33), "bf16") == "bf16"
    assert target_format("q4_0", "layers.0.attn.q", (64, 64), "bf16") == "q4_0"
    assert target_format("", "layers.0.attn.q", (64, 64), "q4_0") == "q4_0"


def test_a_disk_that_is_full_at_any_write_ends_it_and_the_next_try_works(
    dense: Path, tmp_path: Path
) -> None:
    hits: list[str] = []
    faults.listen(hits.append)
    wanted = remake(dense, tmp_path / "whole", "q8_0")["ftw_id"]
    faults.listen(None)
    last = hits.count("files.write")
    for number in (1, last // 2, *range(last - 8, last + 1)):
        target = tmp_path / str(number)
        faults.arm(f"files.write:{number}=error:ENOSPC")
        with pytest.raises(OSError, match="No space left"):
            remake(dense, target, "q8_0")
        faults.arm("")
        shutil.rmtree(target, ignore_errors=True)
        assert remake(dense, target, "q8_0")["ftw_id"] == wanted
