"""Forecast: published speeds, monotonic answers, refusals with numbers, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ftengine.device.machine import profile_names, read_machine
from ftengine.errors import FormatError, LoadError
from ftengine.forecast.__main__ import main
from ftengine.forecast.forecast import MISS_POINTS, Question, forecast, miss_rate
from ftengine.forecast.published import QWEN_BF16, QWEN_NVFP4, compare, errors, table
from ftengine.forecast.shape import shape_of_ftw, shape_of_json

ROOT = Path(__file__).resolve().parents[3]
SERVER = read_machine("rtx-5090-server")
LAPTOP = read_machine("rtx-4060-laptop")


def test_published_speeds_are_met_within_the_stated_errors() -> None:
    median, worst = errors(compare())
    assert median <= 0.25
    assert worst <= 0.40


def test_the_table_in_the_docs_is_the_one_computed() -> None:
    assert table() in (ROOT / "docs" / "forecast.md").read_text("utf-8")


def test_miss_rates_go_through_the_published_points() -> None:
    for share, missed in MISS_POINTS:
        assert miss_rate(share) == pytest.approx(missed)
    rates = [miss_rate(share / 50) for share in range(51)]
    assert rates[0] == 1.0
    assert rates[-1] == 0.0
    assert rates == sorted(rates, reverse=True)


def test_more_memory_and_faster_links_never_slow_a_model_down() -> None:
    base = forecast(QWEN_BF16, SERVER).tokens_per_s
    bigger = forecast(QWEN_BF16, replace(SERVER, vram_bytes=2 * SERVER.vram_bytes))
    faster = forecast(QWEN_BF16, replace(SERVER, host_bytes_per_s=2 * SERVER.host_bytes_per_s))
    assert bigger.tokens_per_s > base
    assert faster.tokens_per_s >= base


def test_a_model_that_fits_whole_is_resident() -> None:
    answer = forecast(QWEN_BF16, replace(SERVER, vram_bytes=96 << 30))
    assert (answer.strategy, answer.miss_rate) == ("resident", 0.0)


def test_too_long_a_context_is_refused_with_numbers() -> None:
    answer = forecast(QWEN_NVFP4, LAPTOP, Question(context_tokens=10_000_000))
    assert not answer.fits
    assert answer.tokens_per_s == 0.0
    assert "10000000 tokens of context" in answer.reason


def test_too_little_ram_means_the_disk_tier_and_less_speed() -> None:
    answer = forecast(QWEN_BF16, LAPTOP)
    assert answer.tier == "disk"
    assert answer.tokens_per_s < forecast(QWEN_NVFP4, LAPTOP).tokens_per_s / 2


def test_a_machine_without_a_device_computes_on_its_cpu() -> None:
    answer = forecast(QWEN_NVFP4, replace(LAPTOP, vram_bytes=0))
    assert (answer.strategy, answer.vram_bytes, answer.expert_slots) == ("cpu", 0, 0)
    assert 0 < answer.tokens_per_s < forecast(QWEN_NVFP4, LAPTOP).tokens_per_s


def test_long_prompts_take_longer() -> None:
    times = [
        forecast(QWEN_BF16, SERVER, Question(prompt_tokens=n)).ttft_s for n in (16, 512, 65536)
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]


SHAPE = json.dumps({"name": "tiny", "num_layers": 2, "dense_bytes": 1000, "kv_bytes_per_token": 8})


def write_ftw(folder: Path) -> Path:
    """An index and a config as the converter writes them; no weights, none are read."""
    bank = {
        "num_experts": 4,
        "offset": 8192,
        "origin": [],
        "parts": [
            {
                "name": "gate_up",
                "format": "bf16",
                "layout": "panel32.v1.pair",
                "offset": 0,
                "bytes": 64 * 32 * 2,
                "shape": [64, 32],
            },
            {
                "name": "down",
                "format": "bf16",
                "layout": "panel32.v1",
                "offset": 4096,
                "bytes": 32 * 32 * 2,
                "shape": [32, 32],
            },
        ],
        "row_bytes": 8192,
        "shard": 0,
    }
    index = {
        "format": "ftw",
        "version": 1,
        "family": "mixtral",
        "shards": [{"file": "weights-00000.ftw", "bytes": 73728, "blocks": ["0" * 32]}],
        "files": [],
        "tensors": [
            {
                "name": name,
                "shard": 0,
                "offset": offset,
                "bytes": 64,
                "shape": [32],
                "format": "bf16",
                "origin": [],
            }
            for name, offset in (("embed", 0), ("head", 4096))
        ],
        "banks": [
            {**bank, "name": f"layers.{n}.experts", "offset": 8192 + n * 32768} for n in range(2)
        ],
    }
    config = {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 64,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "rope_theta": 1e4,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_converted_model_is_described_by_its_headers(tmp_path: Path) -> None:
    shape = shape_of_ftw(write_ftw(tmp_path / "tiny"))
    assert (shape.num_moe_layers, shape.num_experts, shape.num_experts_per_tok) == (2, 4, 2)
    assert (shape.expert_row_bytes, shape.expert_params) == (8192, 96 * 32)
    assert (shape.dense_bytes, shape.read_bytes) == (128, 64)
    assert shape.kv_bytes_per_token == 2 * 2 * 1 * 16 * 2


def test_a_plan_of_the_converter_is_a_shape() -> None:
    plan = {
        "plan": {
            "details": {"context_length": 4096},
            "dense_bytes": 100,
            "expert_bytes": 6400,
            "num_layers": 3,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "expert_row_bytes": 400,
            "kv_bytes_per_token": 16,
            "disk_bytes": 7000,
        }
    }
    shape = shape_of_json(json.dumps(plan), "plan")
    assert (shape.num_moe_layers, shape.expert_bytes, shape.disk_bytes) == (2, 6400, 7000)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ("{}", "lacks 'name'"),
        (SHAPE.replace("1000", '"many"'), "dense_bytes = 'many'"),
        (SHAPE.replace("1000", "-1"), "dense_bytes = -1"),
    ],
)
def test_a_bad_shape_names_the_key(text: str, named: str) -> None:
    with pytest.raises(FormatError, match=named):
        shape_of_json(text, "given")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"index\.json cannot be read"):
        shape_of_ftw(tmp_path)


@pytest.mark.parametrize("device", profile_names())
def test_the_command_answers_one_json_object(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--shape", SHAPE, "--device", device, "--context", "64"]) == 0
    answer = json.loads(capsys.readouterr().out)["forecast"]
    assert answer["device"] == device
    assert answer["fits"] is True
    assert answer["clock"] == "computed"


def test_the_command_reports_errors_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", SHAPE, "--device", "abacus"]) == 1
    assert "'abacus' is unknown" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_the_command_loads_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from ftengine.forecast.__main__ import main; main(['--list']); "
        "sys.exit(bool({'torch', 'numpy', 'ftengine.kernels'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, timeout=30)
    assert done.returncode == 0
