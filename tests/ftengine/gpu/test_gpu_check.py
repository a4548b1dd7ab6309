"""gpu_check without a GPU: the report, the time limit, and every section on the stand-in driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_check import Report, run_sections
from benchmarks.gpu_latents import LatentShape
from benchmarks.gpu_rig import Shape, Tools, random_bank
from benchmarks.gpu_sections import Check
from ftengine.device.cuda import GpuDevice
from ftengine.errors import EngineError
from ftengine.gpu import kernel_cache
from ftengine.gpu.kernel_cache import KernelCache
from ftengine.gpu.launcher import Launcher
from ftengine.kernels.latent_operands import LatentHeads
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.triton.builds import TABLE
from tests.ftengine.gpu.fake_driver import FakeGpu, wrap
from tests.ftengine.gpu.host_experts import PlayedStore
from tests.ftengine.gpu.host_kernels import Admitting, Values, fake_compiler
from tests.ftengine.gpu.host_latent import strided
from tests.ftengine.gpu.host_layers import PlayedEngine

TINY = Shape(layers=3, experts=12, places=2, hidden=64, inter=32)


def test_sections_that_would_begin_too_late_are_skipped_by_name(tmp_path: Path) -> None:
    """A failed section does not end the rest, and the file is whole after each."""
    clock, seen = [0.0], []

    def section(name: str, seconds: float) -> Mapping[str, Any]:
        content = json.loads((tmp_path / "r.json").read_text())
        seen.append({key: value["status"] for key, value in content["sections"].items()})
        clock[0] += seconds
        if name == "b":
            raise RuntimeError("no such kernel")
        return {"value": 1}

    sections = {name: lambda name=name: section(name, 4.0) for name in "abcd"}
    report = Report(tmp_path / "r.json", {"sections": {}})
    assert not run_sections(sections, report, 10.0, lambda: clock[0])
    found = json.loads((tmp_path / "r.json").read_text())["sections"]
    assert {name: item["status"] for name, item in found.items()} == {
        "a": "ok", "b": "failed", "c": "ok", "d": "skipped",
    }  # fmt: skip
    assert found["a"]["value"] == 1
    assert "RuntimeError: no such kernel" in found["b"]["error"]
    assert seen == [
        {"a": "running"},
        {"a": "ok", "b": "running"},
        {"a": "ok", "b": "failed", "c": "running"},
    ]


@pytest.fixture
def check(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    monkeypatch.setattr(kernel_cache, "installed_triton", lambda: "3.9.9")
    device = GpuDevice(gpu.driver(), wrap)
    cache = KernelCache(TABLE, tmp_path, fake_compiler, shipped=None)
    kernels = NativeKernels.load(num_threads=2)
    tools = Tools(device, Launcher(device.driver, TABLE, cache), kernels)
    Admitting(gpu, kernels, random_bank(TINY, "q8_0", 0)).install()
    check = Check(tools, TINY, ("q8_0",), "q8_0", (1 << 16,), steps=2)
    yield check
    check.close()


@pytest.mark.parametrize(
    "section",
    ["kernels", "eager_is_graph", "strategies_equal", "rates", "decode_6.5536e-05_gb", "resizes"],
)  # fmt: skip
def test_a_section_runs_on_the_stand_in(check: Check, section: str) -> None:
    """Same code as on a GPU, kernels played on the host: it ends, checks hold, memory returns."""
    held = check.tools.device.free_bytes
    found = check.sections[section]()
    assert found
    json.dumps(found)
    assert check.tools.device.free_bytes == held


def test_prefill_runs_on_the_stand_in(check: Check, gpu: FakeGpu) -> None:
    """Through the engine's own store; copies are slow enough to be seen."""
    PlayedStore(gpu, check.tools.kernels, random_bank(TINY, "q8_0", 0)).install()
    gpu.set("delay_us", 300)
    held = check.tools.device.free_bytes
    found = Check(check.tools, TINY, decode_format="q8_0", dot="f32").prefill_overlap()
    row_bytes = random_bank(TINY, "q8_0", 0).row_bytes
    assert found["link_bytes"] == found["layers"] * TINY.experts * row_bytes
    assert 0 < found["link_s"] < found["streamed_s"]
    assert check.tools.device.free_bytes == held
    assert gpu.pinned_bytes == 0


def test_wrong_results_fail_their_section(check: Check, gpu: FakeGpu, tmp_path: Path) -> None:
    broken = Admitting(gpu, check.tools.kernels, random_bank(TINY, "q8_0", 1))
    broken.install()
    broken._copy_rows = lambda v: None  # type: ignore[method-assign]
    broken.install()
    report = Report(tmp_path / "r.json", {"sections": {}})
    assert not run_sections({"kernels": check.sections["kernels"]}, report)
    assert report.content["sections"]["kernels"]["status"] == "failed"


def no_numbers(_: PlayedEngine, v: Values, weight: torch.Tensor) -> None:
    """A head_product that writes what is no number."""
    strides = (v["out_stride"], v["out_head_stride"], 1)
    strided(v["out"], (v["num_tokens"], v["heads"], v["OUT"]), strides).fill_(float("nan"))


def test_latents_run_on_the_stand_in(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding and a chunk, all keys and chosen ones; wrong sums would fail the section."""
    monkeypatch.setattr(kernel_cache, "installed_triton", lambda: "3.9.9")
    device, kernels = GpuDevice(gpu.driver(), wrap), NativeKernels.load(num_threads=2)
    cache = KernelCache(TABLE, tmp_path, PlayedEngine(gpu, kernels).compiler, None)
    tools = Tools(device, Launcher(device.driver, TABLE, cache), kernels)
    heads = LatentHeads(3, 16, 8, 16, 32, 32)
    shape = LatentShape(heads, 2, 16, 6, context=40, chunk=4, dtype=torch.float32)
    check = Check(tools, TINY, latent_shape=shape, steps=1, dot="f32")
    held = device.free_bytes
    found = check.sections["latents"]()
    assert found["decode"]["overlap"] == found["chunk"]["overlap"] == 1.0
    assert device.free_bytes == held
    monkeypatch.setattr(PlayedEngine, "_multiply_heads", no_numbers)
    with pytest.raises(EngineError, match="latent attention of 1 tokens"):
        check.sections["latents"]()
    check.close()
