"""gpu_check's sections of whole engines, on the stand-in driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu_engine import EngineSections, EngineSize
from ftengine.device.cuda import GpuDevice
from ftengine.gpu.kernel_cache import KernelCache
from ftengine.gpu.launcher import Launcher
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.triton.builds import TABLE
from ftengine.runtime import assemble
from tests.ftengine.gpu.fake_driver import FakeGpu
from tests.ftengine.gpu.host_layers import PlayedEngine

TINY = EngineSize(
    layers=4,
    changes={
        "vocab_size": 320, "hidden_size": 64, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "num_attention_heads": 4, "head_dim": 32, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
    slot_share=0.25, compute="float32", context_tokens=256, prompt_tokens=24, decode_tokens=6,
    prefill_tokens=40,
)  # fmt: skip


@pytest.fixture
def sections(
    cuda_is_there: None, gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EngineSections]:
    def tools(config: object, device: GpuDevice, kernels: object) -> GpuTools:
        native = NativeKernels.load(num_threads=2)
        played = PlayedEngine(gpu, native)
        cache = KernelCache(TABLE, tmp_path / "kernels", played.compiler, None)
        return GpuTools(device, Launcher(device.driver, TABLE, cache), native, "f32")

    monkeypatch.setattr(assemble, "make_tools", tools)
    found = EngineSections(tmp_path / "model", TINY)
    yield found
    found.close()


@pytest.mark.slow
def test_every_section_runs_on_the_stand_in(sections: EngineSections) -> None:
    """Same code as on a GPU: steps are captured, tokens are the CPU's, memory returns."""
    found = {name: section() for name, section in sections.sections.items()}
    json.dumps(found)
    for strategy in ("split", "fetch", "cpu"):
        assert found["engine_tokens"][strategy]["same_tokens"] == TINY.decode_tokens
        assert found["engine_tokens"][strategy]["step"] == "captured in graphs"
    assert found["engine_decode"]["split"]["misses"] > 0


def test_every_section_runs_without_a_gpu(tmp_path: Path) -> None:
    """On the emulated device: the random model converts, answers, and is gone afterwards."""
    sections = EngineSections(tmp_path / "model", TINY, device="emulated")
    found = {name: section() for name, section in sections.sections.items()}
    assert found["engine_tokens"]["of_tokens"] == TINY.decode_tokens
    assert found["engine_resizes"]["resizes"] == 3
    sections.close()
    assert not sections.work.exists()
