"""A MoE layer on streams: who computes an expert never shows in the result, captured or not."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ftengine.device.cuda import GpuDevice
from ftengine.errors import EngineError
from ftengine.gpu import kernel_cache
from ftengine.gpu.cpu_pairs import CpuPairs, PairSizes
from ftengine.gpu.graph import StepGraphs, Watch
from ftengine.gpu.hand_off import HandOff
from ftengine.gpu.kernel_cache import KernelCache
from ftengine.gpu.launcher import Launcher
from ftengine.gpu.moe_layer import CpuSide, DeviceLayer, MoeBuffers, MoeStep
from ftengine.gpu.stream import Stream
from ftengine.kernels import abi
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.triton.builds import TABLE
from ftengine.kernels.triton.expert_calls import empty_tables
from tests.ftengine.gpu.fake_driver import FakeGpu, wrap
from tests.ftengine.gpu.host_kernels import Played, array, fake_compiler
from tests.ftengine.kernels.operand_makers import make_bank

EXPERTS, HIDDEN, INTER, PLACES, TOKENS, LAYERS = 8, 64, 96, 2, 3, 2
SLOTS = 6
IDS = [[0, 5], [5, 2], [7, 0]]


class Bench:
    """Two layers on the stand-in, with the native library's CPU branch."""

    def __init__(self, gpu: FakeGpu, library: Path, folder: Path) -> None:
        self.kernels = NativeKernels.load(library, num_threads=2)
        self.device = device = GpuDevice(gpu.driver(), wrap)
        driver, self.main, self.side = device.driver, device.compute, Stream(device.driver)
        self.bank = make_bank("q8_0", "q8_0", EXPERTS, HIDDEN, INTER)
        driver.register_host(self.bank.address, self.bank.data.numel())
        sizes = PairSizes(TOKENS, PLACES, HIDDEN)
        self.buffers = MoeBuffers(device.allocate, sizes, INTER)
        slots = device.allocate(SLOTS * self.bank.row_bytes).view(SLOTS, -1)
        loaded = abi.load_library(self.kernels.path)
        self.pairs = CpuPairs(driver, loaded, sizes)
        self.hand_off = HandOff(driver, self.pairs.tasks([self.bank] * LAYERS, TOKENS), loaded)
        self.hand_off.start()
        self.launcher = Launcher(driver, TABLE, KernelCache(TABLE, folder, fake_compiler, None))
        layer = DeviceLayer(self.bank, self.bank.data, replace(self.bank, data=slots))
        self.tables = empty_tables(LAYERS, EXPERTS, SLOTS, [1.0] * 11)
        side = CpuSide(self.side, self.pairs, self.hand_off)
        self.step = MoeStep(
            self.launcher, self.main, [layer] * LAYERS, self.buffers, self.tables, side
        )
        self.step.prepare(TOKENS)
        self.played = Played(gpu, self.kernels, self.bank)
        self.played.install()
        self.results = driver.allocate_host(4 * LAYERS * TOKENS * HIDDEN)
        torch.manual_seed(3)
        self.buffers.x.copy_(torch.randn(TOKENS, HIDDEN))
        self.buffers.ids.copy_(torch.tensor(IDS))
        self.buffers.weights.copy_(torch.rand(TOKENS, PLACES))

    def enqueue(self, _: int) -> None:
        size = 4 * TOKENS * HIDDEN
        for layer in range(LAYERS):
            self.step.enqueue(layer, TOKENS)
            self.main.copy_out(self.results + layer * size, self.buffers.out.data_ptr(), size)

    def close(self) -> None:
        self.hand_off.close()
        for item in (self.step, self.launcher, self.pairs, self.side):
            item.close()
        self.device.driver.free_host(self.results)
        self.device.driver.unregister_host(self.bank.address)
        self.device.close()

    def expected(self) -> np.ndarray:
        """Every pair by the native kernel, summed in routing order as the played merge does."""
        x, ids, weights = self.buffers.x, self.buffers.ids, self.buffers.weights.numpy()
        out = np.zeros((TOKENS, HIDDEN), np.float32)
        for token in range(TOKENS):
            for place in range(PLACES):
                one = ids[token : token + 1, place : place + 1].clone()
                part = self.kernels.expert_ffn(
                    x[token : token + 1], one, torch.ones(1, 1), self.bank
                )
                out[token] += weights[token, place] * part[0].numpy()
        return out


@pytest.fixture
def bench(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(kernel_cache, "installed_triton", lambda: "3.9.9")
    path = abi.find_library(None)
    if not hasattr(ctypes.CDLL(str(path)), "ft_cpu_pairs"):
        pytest.fail(f"{path} is older than native/src/cpu_pairs.cpp; run make native")
    bench = Bench(gpu, path, tmp_path)
    yield bench
    bench.close()


@pytest.mark.parametrize(
    ("script", "fills"),
    [({}, []), ({0: 1, 5: 3, 2: 0, 7: 5}, [0, 5, 2, 7]), ({5: 2, 7: 4}, [5, 7])],
    ids=["cpu", "fetch", "split"],
)
def test_who_computes_an_expert_does_not_show(
    gpu: FakeGpu, bench: Bench, script: dict[int, int], fills: list[int]
) -> None:
    """Eager, captured, and the CPU's own layer: the same bits."""
    gpu.set("delay_us", 200)
    # in the second layer the filled experts are hits
    bench.played.script, bench.played.fills = [script, script], [fills, []]
    bench.enqueue(0)
    bench.main.synchronize()
    eager = array(bench.results, np.float32, LAYERS, TOKENS, HIDDEN).copy()
    for layer in range(LAYERS):
        np.testing.assert_array_equal(eager[layer], bench.expected())
    graphs = StepGraphs(bench.main, bench.enqueue, (TOKENS,), bench.hand_off, Watch(20.0))
    graphs.capture()
    for _ in range(3):
        ctypes.memset(bench.results, 0, 4 * LAYERS * TOKENS * HIDDEN)
        graphs.run(TOKENS)
        again = array(bench.results, np.float32, LAYERS, TOKENS, HIDDEN)
        np.testing.assert_array_equal(again, eager)
    graphs.close()


def test_the_cpu_computes_beside_the_fills(gpu: FakeGpu, bench: Bench) -> None:
    """The hand-over is enqueued before the fills, and merge after both."""
    bench.played.script, bench.played.fills = [{5: 2}] * 2, [[5], []]
    gpu.clear_log()
    bench.step.enqueue(0, TOKENS)
    bench.main.synchronize()
    calls = [line.split()[0] + " " + line.split()[1] for line in gpu.log("^(launch|w)")]
    assert calls == [
        "launch admission", "write_value 0", "write_value 1", "wait_value 1", "launch copy_rows",
        "launch gate_up", "launch down", "launch merge",
    ]  # fmt: skip
    runs = [line.split()[-1] for line in gpu.log("^run launch")]
    assert runs[-1] == "merge"
    assert gpu.log("^run")[-1] == "run launch merge"


def test_biased_experts_are_refused_in_the_cpu_branch(bench: Bench) -> None:
    biased = object.__new__(type(bench.bank))
    object.__setattr__(biased, "fmt_bias", "bf16")
    with pytest.raises(EngineError, match="use the strategy fetch or resident"):
        bench.pairs.tasks([biased], TOKENS)
