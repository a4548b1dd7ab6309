"""quantization_config in all its dialects: the right scheme per module, or a refusal by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ftengine.convert.convert import run_job
from ftengine.convert.local import convert_folder, local_job, plan_folder
from ftengine.convert.quantised.config import plan_of_config
from ftengine.convert.quantised.scheme import QuantPlan, names_or_patterns, parents
from ftengine.errors import EngineError, LoadError
from tests.fakes import tiny_models as tiny
from tests.fakes.quantised import SIZES, Stored, build_quantised, quant_config, write_stored
from tests.fakes.windows import WindowFolder, WindowLink

EXPERT = "model.layers.3.mlp.experts.7.up_proj"
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 32}
FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16}


def plan_of(setting: Any, beside: Any = None, **config: Any) -> QuantPlan:
    found = plan_of_config({"quantization_config": setting, **config}, lambda: beside)
    assert found is not None
    return found


def kind(plan: QuantPlan, module: str, dtype: str) -> str | None:
    scheme = plan.scheme_of(module, dtype)
    return None if scheme is None else scheme.kind


def compressed(fmt: str, weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    groups = {"config_groups": {"group_0": group}}
    return {"quant_method": "compressed-tensors", "format": fmt, **groups, **more}


def test_nothing_quantised_is_no_plan() -> None:
    assert plan_of_config({}, lambda: None) is None
    assert plan_of_config({"quantization_config": None}, lambda: None) is None


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
def test_fp8_blocks_and_their_two_skip_lists(key: str) -> None:
    setting = {"quant_method": "fp8", "weight_block_size": [128, 128], key: ["mlp.gate", "lm_head"]}
    plan = plan_of(setting)
    assert kind(plan, EXPERT, "F8_E4M3") == "fp8_block"
    assert kind(plan, "model.layers.0.mlp.gate_proj", "F8_E4M3") == "fp8_block"
    assert kind(plan, "model.layers.0.mlp.gate", "F8_E4M3") is None
    assert kind(plan, "lm_head", "F8_E4M3") is None
    assert kind(plan, EXPERT, "I8") is None


def test_fp8_without_blocks_has_one_scale() -> None:
    plan = plan_of({"quant_method": "fp8", "weight_block_size": None})
    assert kind(plan, EXPERT, "F8_E4M3") == "fp8_tensor"


def test_deepseek_v4_tells_fp4_experts_by_their_dtype() -> None:
    setting = {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    plan = plan_of(setting, expert_dtype="fp4")
    assert kind(plan, EXPERT, "I8") == "mxfp4"
    assert kind(plan, "model.layers.3.self_attn.q_proj", "F8_E4M3") == "fp8_block"


def test_a_wrapper_may_keep_the_setting_with_its_text_model() -> None:
    inner = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    plan = plan_of_config({"text_config": inner}, lambda: None)
    assert plan is not None
    assert kind(plan, EXPERT, "F8_E4M3") == "fp8_block"


@pytest.mark.parametrize(
    ("fmt", "weights", "dtype", "expected"),
    [
        ("float-quantized", FLOAT8, "F8_E4M3", "fp8_tensor"),
        ("float-quantized", FLOAT8 | {"strategy": "tensor"}, "F8_E4M3", "fp8_tensor"),
        (
            "float-quantized",
            FLOAT8 | {"strategy": "block", "block_structure": [128, 128]},
            "F8_E4M3",
            "fp8_block",
        ),
        (
            "float-quantized",
            FLOAT8 | {"strategy": "block", "block_structure": "128x128"},
            "F8_E4M3",
            "fp8_block",
        ),
        ("pack-quantized", INT4, "I32", "int4_group"),
        ("mxfp4-pack-quantized", FLOAT4 | {"group_size": 32}, "U8", "mxfp4"),
        ("nvfp4-pack-quantized", FLOAT4 | {"strategy": "tensor_group"}, "U8", "nvfp4"),
    ],
)
def test_compressed_tensors_formats(
    fmt: str, weights: dict[str, Any], dtype: str, expected: str
) -> None:
    plan = plan_of(compressed(fmt, weights, ignore=["lm_head", r"re:.*mlp\.gate$"]))
    assert kind(plan, EXPERT, dtype) == expected
    assert kind(plan, "lm_head", dtype) is None
    assert kind(plan, "model.layers.0.mlp.gate", dtype) is None
    assert kind(plan, "model.layers.0.mlp.gate_proj", dtype) == expected


def test_groups_that_name_their_modules_go_before_the_one_for_all() -> None:
    setting = quant_config("mixed_ct", {})
    plan = plan_of(setting)
    assert kind(plan, "model.layers.0.self_attn.q_proj", "F8_E4M3") == "fp8_tensor"
    assert kind(plan, EXPERT, "U8") == "nvfp4"


def test_modelopt_from_either_file_and_from_both() -> None:
    inner = {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head", "*router*"]}
    beside = {"producer": {"name": "modelopt"}, "quantization": inner}
    alone = plan_of_config({}, lambda: beside)
    assert alone is not None
    both = plan_of({"quant_method": "modelopt"}, beside)
    config = plan_of({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]})
    for plan in (alone, both, config):
        assert kind(plan, EXPERT, "U8") == "nvfp4"
        assert kind(plan, "lm_head", "U8") is None
    assert kind(both, "model.layers.1.router.gate", "U8") is None


def test_modelopt_mixed_precision_goes_by_module() -> None:
    layers = {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        EXPERT: {"quant_algo": "NVFP4", "group_size": 16},
    }
    setting = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    plan = plan_of(setting | {"quantized_layers": layers})
    assert kind(plan, "model.layers.0.self_attn.q_proj", "F8_E4M3") == "fp8_tensor"
    assert kind(plan, EXPERT, "U8") == "nvfp4"
    assert kind(plan, "model.layers.1.self_attn.q_proj", "F8_E4M3") is None
    groups = {
        "group_0": {"targets": [EXPERT], "weights": FLOAT4},
        "group_1": {"targets": ["model.layers.0.self_attn.q_proj"], "weights": FLOAT8},
    }
    again = plan_of(setting | {"config_groups": groups})
    assert kind(again, EXPERT, "U8") == "nvfp4"
    assert kind(again, "model.layers.0.self_attn.q_proj", "F8_E4M3") == "fp8_tensor"


REFUSED = [
    ({"quant_method": "gptq", "bits": 4}, "'gptq'"),
    ({"quant_method": "awq", "bits": 4}, "'awq'"),
    ({"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
    ({"quant_method": "fp8", "fmt": "e5m2"}, "e5m2"),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size \[64, 64\]"),
    (compressed("pack-quantized", {"num_bits": 8, "type": "int"}), "'pack-quantized' .int 8 bit"),
    (compressed("pack-quantized", INT4 | {"actorder": "group"}), "actorder group"),
    (compressed("pack-quantized", INT4 | {"symmetric": False}), "zero points"),
    (compressed("int-quantized", {"num_bits": 8, "type": "int"}), "'int-quantized' .int 8 bit"),
    (compressed("mxfp8", FLOAT8 | {"strategy": "group"}), "'mxfp8'"),
    (compressed("float-quantized", FLOAT8 | {"strategy": "group"}), "float 8 bit, group"),
    (compressed("nvfp4-pack-quantized", FLOAT4 | {"group_size": 32}), "group_size 32"),
    (compressed("float-quantized", FLOAT8, sparsity_config={"format": "24"}), "sparsity '24'"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "'W4A8_AWQ'"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "group_size 32"),
    (
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"a": {"quant_algo": "INT4_AWQ"}},
        },
        "'INT4_AWQ'",
    ),
]


@pytest.mark.parametrize(("setting", "name"), REFUSED)
def test_unbuilt_formats_are_refused_by_name_before_any_header(
    setting: dict[str, Any], name: str, tmp_path: Path
) -> None:
    folder = tiny.build_tiny(
        "llama", tmp_path / "src", config_changes={"quantization_config": setting}
    )
    job, paths = local_job(folder, tmp_path / "ftw")
    link = WindowLink(WindowFolder(paths, tmp_path / "windows", 1 << 30))
    with pytest.raises(LoadError, match=name) as caught:
        run_job(job, link)
    assert caught.value.code == "unsupported_format"
    assert "bf16 release" in caught.value.message
    assert {m["need"]["file"] for m in link.messages if "need" in m} == {"config.json"}


@pytest.mark.parametrize(
    "value",
    [
        [],
        "fp8",
        {"quant_method": "fp8", "modules_to_not_convert": "lm_head"},
        {"quant_method": "fp8", "modules_to_not_convert": [1]},
        {"quant_method": "compressed-tensors", "config_groups": []},
        {"quant_method": "compressed-tensors", "config_groups": {"a": 1}},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": None}}},
        {"quant_method": {}, "quant_algo": []},
        {"quant_method": "modelopt", "quant_algo": {}},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": 1}},
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "config_groups": {"a": {"weights": {"type": {}, "num_bits": []}, "targets": ["x"]}},
        },
        compressed("float-quantized", FLOAT8, ignore=["re:("]),
        compressed("float-quantized", {"num_bits": [], "type": {}}),
    ],
)
def test_hostile_settings_are_engine_errors(value: Any) -> None:
    with pytest.raises(EngineError):
        plan_of(value)


def test_name_lists_mean_modules_and_what_is_below_them() -> None:
    named = parents(["model.layers.0.self_attn", "lm_head", "model.layers.*.mlp.router"])
    assert named("model.layers.0.self_attn.q_proj")
    assert named("lm_head")
    assert named("model.layers.12.mlp.router")
    assert not named("model.layers.0.self_attn2.q_proj")
    assert not named("model.layers.10.self_attn.q_proj")
    exact = names_or_patterns(["a.b", r"re:.*\.gate$"], "ignore")
    assert exact("a.b")
    assert exact("x.gate")
    assert not exact("a.b.c")
    assert not exact("x.gate_proj")


def test_hf_quant_config_alone_is_enough(tmp_path: Path) -> None:
    build_quantised("qwen3_moe", tmp_path, "nvfp4_modelopt")
    expected = convert_folder(tmp_path / "q", tmp_path / "a")
    path = tmp_path / "q" / "config.json"
    config = json.loads(path.read_text())
    inner = config.pop("quantization_config")
    path.write_text(json.dumps(config))
    inner["exclude_modules"] = inner.pop("ignore")
    beside = tmp_path / "q" / "hf_quant_config.json"
    beside.write_text(json.dumps({"producer": {}, "quantization": inner}))
    shards = [tmp_path / name / "weights-00000.ftw" for name in "ab"]
    assert convert_folder(tmp_path / "q", tmp_path / "b")["family"] == expected["family"]
    assert shards[0].read_bytes() == shards[1].read_bytes()


def damaged(tmp_path: Path, change: Any) -> Path:
    """A block fp8 release whose tensors were changed by hand."""
    folder = tiny.build_tiny(
        "llama",
        tmp_path / "q",
        sizes=SIZES,
        config_changes={"quantization_config": quant_config("fp8_block", {})},
    )
    weights = tiny.hub_weights("llama", SIZES)
    tensors = {name: Stored("F32", values) for name, values in weights.items()}
    name = "model.layers.0.self_attn.q_proj"
    codes = np.full((128, 192), 0x38, np.uint8)
    tensors[name + ".weight"] = Stored("F8_E4M3", codes)
    tensors[name + ".weight_scale_inv"] = Stored("F32", np.ones((1, 2), np.float32))
    change(tensors, name)
    write_stored(folder, tensors)
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t, n: t.pop(n + ".weight_scale_inv"), "its scale is missing .*weight_scale_inv"),
        (
            lambda t, n: t.update({n + ".scale": t[n + ".weight_scale_inv"]}),
            "its scale is there more than once",
        ),
        (
            lambda t, n: t.update({n + ".weight_scale_inv": Stored("F32", np.ones((2, 2), "f4"))}),
            r"shape \[2, 2\]; fp8_block of \[128, 192\] needs \[1, 2\]",
        ),
        (
            lambda t, n: t.update(
                {n + ".weight_scale_inv": Stored("F8_E4M3", np.ones((1, 2), "u1"))}
            ),
            "has dtype F8_E4M3; scales of fp8_block are F32, BF16, F16, F8_E8M0, U8",
        ),
        (
            lambda t, n: t.update({n + ".weight": Stored("U8", np.ones((128, 192), "u1"))}),
            "has dtype U8, but quantization_config does not say",
        ),
        (
            lambda t, n: t.update(
                {
                    "model.embed_tokens.weight": Stored("F8_E4M3", np.ones((320, 192), "u1")),
                    "model.embed_tokens.weight_scale_inv": Stored("F32", np.ones((3, 2), "f4")),
                }
            ),
            "a quantised embedding is not built",
        ),
        (
            lambda t, n: t.update({n + ".weight": Stored("F8_E4M3", np.ones((128, 160), "u1"))}),
            r"shape \[128, 160\], the config says \[128, 192\]",
        ),
    ],
)
def test_tensors_that_do_not_belong_together(change: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=reason):
        plan_folder(damaged(tmp_path, change))


def test_an_untouched_release_of_one_quantised_matrix_converts(tmp_path: Path) -> None:
    plan = plan_folder(damaged(tmp_path, lambda tensors, name: None))
    assert plan["details"]["quantization_level"] == "FP8"


def test_scales_of_activations_and_caches_are_left_out(tmp_path: Path) -> None:
    def add(tensors: dict[str, Stored], name: str) -> None:
        one = Stored("F32", np.ones((), np.float32))
        tensors |= {
            "model.layers.0.self_attn.k_scale": one,
            "model.layers.0.self_attn.k_proj.output_scale": one,
            name + ".input_scale": one,
        }

    convert_folder(damaged(tmp_path, add), tmp_path / "ftw")
    index = (tmp_path / "ftw" / "index.json").read_text()
    assert "k_scale" not in index
    assert "input_scale" not in index
