"""plan tells from headers what the conversion then gives; descriptions use familiar words."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from ftengine.convert.describe import capabilities_of, human_count
from ftengine.convert.gguf_config import (
    GgufSettings,
    config_of_gguf,
    end_ids,
    llama3_factors,
    short_single,
)
from ftengine.convert.local import LocalLink, convert_folder, local_job, plan_folder
from ftengine.convert.plan import outline_job
from ftengine.errors import LoadError
from ftengine.forecast.shape import shape_of_ftw, shape_of_json
from ftengine.models.families import FAMILIES, family_named
from tests.fakes import tiny_models as tiny
from tests.fakes.windows import ROOT, WindowFolder, job_line, start_converter, talk


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_plan_is_what_comes_out(family: str, tmp_path: Path) -> None:
    source = tiny.build_tiny(family, tmp_path / "src", dtype="bfloat16", num_shards=2)
    plan = plan_folder(source)
    result = convert_folder(source, tmp_path / "ftw")
    shared = plan.keys() & result.keys()
    assert {"details", "load_bytes", "kv_bytes_per_token", "capabilities"} <= shared
    assert {key: plan[key] for key in shared} == {key: result[key] for key in shared}
    sizes = tiny.sizes_of(family)
    count = sum(values.size for values in tiny.hub_weights(family, sizes).values())
    details = result["details"]
    assert details["parameter_count"] == count
    assert details["quantization_level"] == "BF16"
    assert (details["context_length"], details["embedding_length"]) == (512, 64)
    assert result["kv_bytes_per_token"] == 2 * 2 * 2 * sizes.head_dim * sizes.layers
    assert abs(plan["disk_bytes"] - result["bytes"]) < 100_000
    assert plan["peak_disk_bytes"] > plan["disk_bytes"]


def test_the_plan_command_reads_headers_only(tmp_path: Path) -> None:
    source = tiny.build_tiny("mixtral", tmp_path / "src", num_shards=2)
    job, paths = local_job(source, tmp_path / "ftw")
    windows = WindowFolder(paths, tmp_path / "windows", 1 << 16)
    messages = talk_plan(windows, job_line("safetensors", paths, job.target))
    plan = messages[-1]["plan"]
    assert plan["family"] == "mixtral"
    needs = [m["need"] for m in messages if "need" in m]
    weights = [need for need in needs if need["file"].endswith(".safetensors")]
    assert {need["start"] for need in weights} == {0}
    assert all(need["end"] <= 1 << 16 for need in weights)
    assert not job.target.exists()


def talk_plan(windows: WindowFolder, line: bytes) -> list[dict]:
    process = start_converter("plan")
    messages = talk(process, line, windows)
    assert process.returncode == 0
    return messages


def test_the_families_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ftengine.convert", "families"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == {"families": [family.name for family in FAMILIES]}


def test_model_info_has_gguf_names_and_no_long_lists(tmp_path: Path) -> None:
    source = tiny.build_tiny_gguf("qwen3moe", tmp_path / "t.gguf", types={"experts": "q4_1"})
    result = convert_folder(source, tmp_path / "ftw")
    info = result["model_info"]
    assert info["general.architecture"] == "qwen3moe"
    assert info["qwen3moe.expert_count"] == 4
    assert info["tokenizer.ggml.tokens"] is None
    assert info["general.parameter_count"] == result["details"]["parameter_count"]
    kept = json.loads((tmp_path / "ftw" / "source.json").read_text())
    assert len(kept["model_info"]["tokenizer.ggml.tokens"]) > 256
    folder = tiny.build_tiny("qwen3_moe", tmp_path / "src")
    other = convert_folder(folder, tmp_path / "ftw2")["model_info"]
    assert other["qwen3moe.expert_used_count"] == info["qwen3moe.expert_used_count"]


def test_k_quants_count_as_what_they_are(tmp_path: Path) -> None:
    sizes = tiny.sizes_of("qwen3_moe", hidden=256, expert_inter=256)
    path = tmp_path / "t.gguf"
    tiny.build_tiny_gguf("qwen3moe", path, types={"experts": "q4_k"}, sizes=sizes)
    small = plan_folder(path)
    tiny.build_tiny_gguf("qwen3moe", path, types={"experts": "bf16"}, sizes=sizes)
    experts = 2 * 4 * 3 * 256 * 256
    wide = plan_folder(path)
    assert wide["load_bytes"] - small["load_bytes"] == experts * 2 - experts // 256 * 144
    assert not small["notes"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (134515008, "134.52M"),
        (30_532_122_624, "30.5B"),
        (7_000_000_000, "7B"),
        (1_000_000_000_000, "1T"),
        (692_000_000, "692M"),
        (103_000, "103K"),
        (12, "12"),
    ],
)
def test_parameter_sizes_read_like_ollamas(count: int, text: str) -> None:
    assert human_count(count) == text


def test_capabilities_come_from_the_template() -> None:
    assert capabilities_of("{{ messages }}") == ["completion"]
    assert capabilities_of("{% if tools %}{% endif %}") == ["completion", "tools"]
    assert "thinking" in capabilities_of("{% if enable_thinking %}{% endif %}")


def settings(**changes: object) -> GgufSettings:
    values = {
        "general.architecture": "llama",
        "llama.embedding_length": 64,
        "llama.block_count": 2,
        "llama.attention.head_count": 4,
        "llama.feed_forward_length": 96,
        "llama.context_length": 4096,
        "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
        "llama.rope.freq_base": 500000.0,
        **{f"llama.{key}": value for key, value in changes.items()},
    }
    return GgufSettings(values, "t.gguf")


def test_rope_freqs_become_llama3_scaling() -> None:
    family = family_named("llama")
    factors = llama3_factors(500000.0, 16, 32.0, 8192)
    config = config_of_gguf(settings(), family, 320, factors)
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert config["rms_norm_eps"] == 1e-5
    family.read_config(config)
    assert config_of_gguf(settings(), family, 320, [1.0] * 8)["rope_scaling"] is None
    with pytest.raises(LoadError, match="rope_freqs"):
        config_of_gguf(settings(), family, 320, [1.0, 3.0] * 4)


def test_llama3_factors_equal_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=1,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    factors = llama3_factors(500000.0, 64, 8.0, 8192)
    for pair, factor in enumerate(factors):
        plain = 500000.0 ** (-2 * pair / 64)
        assert math.isclose(plain / factor, float(scaled[pair]), rel_tol=1e-5)


def test_gguf_rope_scaling_kinds() -> None:
    family = family_named("llama")
    linear = settings(**{"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    assert config_of_gguf(linear, family, 320, None)["rope_scaling"] == {
        "rope_type": "linear",
        "factor": 4.0,
    }
    yarn = settings(
        **{
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 1024,
        }
    )
    scaling = config_of_gguf(yarn, family, 320, None)["rope_scaling"]
    assert scaling["original_max_position_embeddings"] == 1024
    with pytest.raises(LoadError, match="longrope"):
        config_of_gguf(settings(**{"rope.scaling.type": "longrope"}), family, 320, None)


def test_end_ids_are_the_union_of_what_ends_a_turn() -> None:
    values = {
        "tokenizer.ggml.eos_token_id": 5,
        "tokenizer.ggml.eot_token_id": 4,
        "tokenizer.ggml.tokens": ["a", "<|im_end|>", "<|endoftext|>", "b", "c", "d"],
        "tokenizer.ggml.token_type": [1, 3, 1, 1, 3, 3],
    }
    assert end_ids(values) == [5, 4, 1]


def test_the_end_of_a_message_is_no_end_where_turns_have_several() -> None:
    def ends(*tokens: str) -> list[int]:
        return end_ids(
            {"tokenizer.ggml.tokens": [*tokens], "tokenizer.ggml.token_type": [3] * len(tokens)}
        )

    assert ends("<|end|>", "a", "<|return|>", "<|call|>") == [2, 3]
    assert ends("<|end|>", "a") == [0]
    assert ends("<turn|>", "<|tool_response>", "<|turn>") == [0, 1]


def test_singles_become_their_shortest_decimal() -> None:
    assert short_single(9.999999974752427e-07) == 1e-6
    assert short_single(0.10000000149011612) == 0.1
    assert short_single(1000000.0) == 1e6


def test_a_forecast_of_a_plan_is_that_of_the_folder(tmp_path: Path) -> None:
    source = tiny.build_tiny("qwen3_moe", tmp_path / "src", dtype="bfloat16")
    plan = plan_folder(source)
    convert_folder(source, tmp_path / "ftw")
    planned = shape_of_json(json.dumps(plan), "plan")
    made = shape_of_ftw(tmp_path / "ftw")
    assert planned.active_params == made.active_params
    assert planned.expert_bytes == made.expert_bytes
    assert (planned.num_layers, planned.num_moe_layers) == (made.num_layers, made.num_moe_layers)
    assert planned.read_bytes == pytest.approx(made.read_bytes, rel=0.02)


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_an_outline_sizes_what_no_family_knows(kind: str, tmp_path: Path) -> None:
    """Against the exact plan of the same tensors under a name that is built."""
    if kind == "gguf":
        source = tmp_path / "t.gguf"
        tiny.build_tiny_gguf("qwen3moe", source, types={"experts": "q4_1"})
    else:
        source = tiny.build_tiny("mixtral", tmp_path / "src", dtype="bfloat16")
    job, paths = local_job(source, tmp_path / "ftw")
    exact = outline_job(job, LocalLink(paths))
    assert "unbuilt" not in exact
    if kind == "gguf":
        data = source.read_bytes()
        source.write_bytes(data.replace(b"qwen3moe", b"qwen9moe"))
    else:
        config = json.loads((source / "config.json").read_text())
        config |= {"architectures": ["NovelForCausalLM"], "model_type": "novel"}
        (source / "config.json").write_text(json.dumps(config))
    job, paths = local_job(source, tmp_path / "ftw")
    found = outline_job(job, LocalLink(paths))
    assert "not built yet" in found["unbuilt"]
    same = ("num_layers", "num_moe_layers", "num_experts", "num_experts_per_tok", "expert_params")
    assert {key: found[key] for key in same} == {key: exact[key] for key in same}
    assert found["kv_bytes_per_token"] == exact["kv_bytes_per_token"]
    assert found["disk_bytes"] == pytest.approx(exact["disk_bytes"], rel=0.25)
    shape = shape_of_json(json.dumps(found), "plan")
    assert shape.num_experts_total == exact["num_moe_layers"] * exact["num_experts"]
