"""Time per operator: what is counted, and that the table adds up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ftengine.config import ComputeConfig, EngineConfig
from ftengine.errors import EngineError
from ftengine.kernels import abi
from ftengine.kernels.call_work import CallWork, TimedCall, work_of
from ftengine.kernels.native import NativeKernels, PackedWeight
from ftengine.profile.__main__ import main
from ftengine.profile.measure import Asked, Rates, measure
from ftengine.quant.panel32 import packed_bytes
from tests.ftengine.parity.tiny_engines import make_tiny

ASKED = Asked(prompt=40, context=8, steps=4)


def config(ftw: Path, kernels: str = "native") -> EngineConfig:
    compute = ComputeConfig(device="cpu", threads=2, kernels=kernels)
    return EngineConfig(ftw, context_tokens=64, num_parallel=1, prefix_cache=False, compute=compute)


def test_a_floor_is_the_longer_of_bytes_and_products() -> None:
    rates = Rates(read=100.0, products={"q8_0": 10.0, "f32": 5.0})
    assert rates.floor_s(TimedCall(CallWork("a", "q8_0", 300, 20), 9.0)) == 3.0
    assert rates.floor_s(TimedCall(CallWork("a", "q8_0", 100, 20), 9.0)) == 2.0
    assert rates.floor_s(TimedCall(CallWork("rms_norm"), 9.0)) == 0.0


def test_the_work_of_a_product_is_read_off_its_struct() -> None:
    kernels = NativeKernels.load(num_threads=1)
    data = torch.zeros(packed_bytes("q8_0", 64, 96), dtype=torch.uint8)
    kernels.timed = []
    kernels.linear(torch.randn(3, 96), PackedWeight(data, "q8_0", 64, 96))
    (call,) = kernels.timed
    assert call.work == CallWork("linear 64 x 96 q8_0", "q8_0", data.numel(), 3 * 64 * 96)
    assert call.seconds > 0


def test_attention_counts_the_keys_that_are_seen() -> None:
    starts = torch.tensor([0, 2, 3], dtype=torch.int32)
    lengths = torch.tensor([5, 40], dtype=torch.int32)

    def work(window: int) -> CallWork:
        values = [0] * len(abi.ATTENTION.unpack(bytes(abi.ATTENTION.size)))
        values[1] = 30  # bf16 pages
        values[7], values[8], values[10] = starts.data_ptr(), lengths.data_ptr(), 2
        values[12:16] = [4, 2, 8, window]
        return work_of("attention", abi.ATTENTION.pack(*values))

    assert work(0).multiply_adds == 2 * (4 + 5 + 40) * 4 * 8
    assert work(0).num_bytes == 2 * (5 + 40) * 2 * 8 * 2
    assert work(3).multiply_adds == 2 * (3 + 3 + 3) * 4 * 8
    assert work(3).num_bytes == 2 * (5 + 4) * 2 * 8 * 2


def test_rows_and_the_rest_add_up_to_the_step(tmp_path: Path) -> None:
    profile = measure(config(make_tiny("qwen3_moe", tmp_path)[1]), ASKED)
    decode, prefill = profile.phases
    assert (decode.name, decode.tokens, prefill.tokens) == ("decode", 1, ASKED.prompt)
    for phase in profile.phases:
        total = sum(row.seconds for row in phase.rows) + phase.rest_s
        assert total == pytest.approx(phase.seconds)
        assert phase.rest_s > 0
        labels = [row.label.split(" ")[0] for row in phase.rows]
        assert {"linear", "experts", "attention", "rms_norm"} <= set(labels)
    experts = next(row for row in decode.rows if row.label.startswith("experts"))
    counts = {row.label: row.calls for row in decode.rows}
    assert experts.calls == counts["attention"] > 0
    assert experts.num_bytes > 0
    assert experts.floor_s > 0


def test_reference_kernels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="native"):
        measure(config(make_tiny("llama", tmp_path)[1], kernels="reference"), ASKED)


def test_the_command_prints_a_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--ftw", str(make_tiny("llama", tmp_path)[1]), "--prompt", "16", "--context", "4"]
    words += ["--steps", "2", "--threads", "2"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["profile"]["phases"]) == {"decode", "prefill"}
    assert told["profile"]["read_bytes_per_s"] > 0
    assert "decode:" in told["text"]
    assert "outside of native calls" in told["text"]


def test_a_missing_model_is_one_error_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--ftw", str(tmp_path / "none")]) == 1
    assert "none" in json.loads(capsys.readouterr().out)["error"]["message"]
