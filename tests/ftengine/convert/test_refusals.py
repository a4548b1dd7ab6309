"""What cannot be converted is refused in one line, early, naming the thing and what is built."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from ftengine.convert.convert import run_job
from ftengine.convert.local import convert_folder, local_job, plan_folder
from ftengine.convert.protocol import Job, parse_job
from ftengine.errors import EngineError, LoadError, RequestError
from tests.fakes import tiny_models as tiny
from tests.fakes.windows import WindowFolder, WindowLink


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_unbuilt_family_costs_no_weight_byte(tmp_path: Path) -> None:
    folder = tiny.build_tiny("qwen3_moe", tmp_path / "src")
    change_config(folder, architectures=["FutureForCausalLM"], model_type="future")
    job, paths = local_job(folder, tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", 1 << 30)
    link = WindowLink(windows)
    with pytest.raises(LoadError, match="FutureForCausalLM") as caught:
        run_job(job, link)
    assert caught.value.code == "unsupported_family"
    assert {m["need"]["file"] for m in link.messages if "need" in m} == {"config.json"}


def test_an_unbuilt_gguf_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    writer = gguf.GGUFWriter(path, "jais2")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadError, match="'jais2' is not built yet; built: llama"):
        plan_folder(path)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda w: w.pop("model.norm.weight"), r"1 tensors are missing: norm"),
        (lambda w: w.update({"model.surprise": w["model.norm.weight"]}), "model.surprise"),
        (lambda w: w.update({"model.norm.weight": np.ones(3, np.float32)}), r"shape \[3\].*\[64\]"),
        (
            lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)}),
            "no place for 1 tensors: model.layers.0.self_attn.q_proj.bias",
        ),
        (lambda w: w.pop("model.layers.1.mlp.experts.2.up_proj.weight"), "up of expert 2"),
        (
            lambda w: w.update(
                {"model.layers.0.mlp.experts.9.up_proj.weight": np.ones((32, 64), np.float32)}
            ),
            "only 4 experts",
        ),
        (
            lambda w: w.update(
                {"model.layers.0.mlp.experts.down_proj": np.ones((4, 64, 32), np.float32)}
            ),
            "given twice",
        ),
    ],
)
def test_tensor_sets_that_do_not_fit(edit: Any, reason: str, tmp_path: Path) -> None:
    folder = tiny.build_tiny("qwen3_moe", tmp_path / "src")
    weights = tiny.hub_weights("qwen3_moe", tiny.sizes_of("qwen3_moe"))
    edit(weights)
    tiny.write_safetensors(folder / "model.safetensors", weights)
    with pytest.raises(LoadError, match=reason):
        convert_folder(folder, tmp_path / "ftw")


def test_known_leftovers_are_skipped(tmp_path: Path) -> None:
    folder = tiny.build_tiny("llama", tmp_path / "src")
    weights = tiny.hub_weights("llama", tiny.sizes_of("llama"))
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    weights["model.layers.2.input_layernorm.weight"] = np.ones(64, np.float32)
    tiny.write_safetensors(folder / "model.safetensors", weights)
    assert convert_folder(folder, tmp_path / "ftw")["family"] == "llama"


def test_other_dtypes_are_refused(tmp_path: Path) -> None:
    folder = tiny.build_tiny("llama", tmp_path / "src")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"dtype": "F32"', b'"dtype": "I32"', 1))
    with pytest.raises(
        LoadError, match=r"dtype I32, which is not built yet; built: F32, BF16, F16"
    ):
        plan_folder(folder)


def test_incomplete_folders_are_refused(tmp_path: Path) -> None:
    folder = tiny.build_tiny("llama", tmp_path / "src", num_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(LoadError, match=r"model-00002-of-00002\.safetensors, which is missing"):
        plan_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(LoadError, match=r"config\.json is missing"):
        plan_folder(folder)
    with pytest.raises(RequestError, match="neither a folder nor a file"):
        plan_folder(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match=r"neither \.safetensors nor \.gguf"):
        plan_folder(tmp_path / "empty")


def split_gguf(path: Path, folder: Path) -> list[Path]:
    """Cut one GGUF in two parts as llama.cpp names them; all key-values go to the first."""
    reader = gguf.GGUFReader(path)
    folder.mkdir()
    parts = []
    half = len(reader.tensors) // 2
    for number, tensors in enumerate((reader.tensors[:half], reader.tensors[half:]), 1):
        target = folder / f"tiny-{number:05d}-of-00002.gguf"
        writer = gguf.GGUFWriter(target, "llama")
        if number == 1:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    kinds = field.types
                    inner = kinds[1] if len(kinds) > 1 else None
                    writer.add_key_value(key, field.contents(), kinds[0], inner)
        for tensor in tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        parts.append(target)
    return parts


def test_a_split_gguf_gives_the_same_weights(tmp_path: Path) -> None:
    whole = tiny.build_tiny_gguf("llama", tmp_path / "t.gguf", types={"matrix": "q8_0"})
    parts = split_gguf(whole, tmp_path / "parts")
    convert_folder(whole, tmp_path / "a")
    convert_folder(tmp_path / "parts", tmp_path / "b")
    assert (tmp_path / "a" / "weights-00000.ftw").read_bytes() == (
        tmp_path / "b" / "weights-00000.ftw"
    ).read_bytes()
    parts[1].unlink()
    with pytest.raises(LoadError, match="part 2 of 2 of tiny is missing"):
        plan_folder(tmp_path / "parts")


def test_gguf_types_without_a_reader_are_refused(tmp_path: Path) -> None:
    path = tiny.build_tiny_gguf("llama", tmp_path / "t.gguf", types={"matrix": "q8_0"})
    data = path.read_bytes()
    name = b"blk.0.attn_v.weight"
    at = data.index(name) + len(name) + 4 + 16
    path.write_bytes(data[:at] + (20).to_bytes(4, "little") + data[at + 4 :])
    with pytest.raises(LoadError, match=r"blk\.0\.attn_v\.weight has type iq4_nl.*built: f32"):
        plan_folder(path)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"source": "pickle"}, "job.source"),
        ({"target": "relative"}, "job.target"),
        ({"files": []}, "job.files"),
        ({"files": [{"name": "a", "bytes": -1}]}, "bytes of a"),
        ({"files": [{"name": "a", "bytes": 1}, {"name": "a", "bytes": 1}]}, "twice"),
        ({"derive": {"kind": "prune"}}, "derive.kind"),
        ({"derive": {"kind": "upcycle", "num_experts": 2, "top_k": 3}}, "top_k"),
        ({"derive": {"kind": "upcycle", "num_experts": 0, "top_k": 1}}, "num_experts"),
    ],
)
def test_bad_jobs_name_the_field(change: Mapping[str, Any], field: str) -> None:
    good = {"source": "gguf", "files": [{"name": "a.gguf", "bytes": 1}], "target": "/x/ftw"}
    assert isinstance(parse_job(good), Job)
    with pytest.raises(RequestError, match=field):
        parse_job(good | change)


def test_hostile_config_values_are_engine_errors(tmp_path: Path) -> None:
    folder = tiny.build_tiny("llama", tmp_path / "src")
    for value in ([], {}, "x", -1, 1e300, None, True, [[1]]):
        for key in ("hidden_size", "rope_theta", "head_dim", "vocab_size", "architectures"):
            original = (folder / "config.json").read_text()
            change_config(folder, **{key: value})
            with contextlib.suppress(EngineError):
                plan_folder(folder)
            (folder / "config.json").write_text(original)
