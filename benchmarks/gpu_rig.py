"""A random model's routed experts on a GPU: banks, slots, tables, graphs; for gpu_sections.py."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ftengine.device.cuda import GpuDevice
from ftengine.device.torch_device import page_aligned
from ftengine.errors import EngineError
from ftengine.experts.policy.rates import Rates
from ftengine.gpu.compile_kernel import compile_kernel
from ftengine.gpu.cpu_pairs import CpuPairs, PairSizes
from ftengine.gpu.graph import StepGraphs
from ftengine.gpu.hand_off import HandOff
from ftengine.gpu.kernel_cache import KernelCache
from ftengine.gpu.launcher import Launcher
from ftengine.gpu.moe_layer import CpuSide, DeviceLayer, MoeBuffers, MoeStep
from ftengine.gpu.stream import Stream
from ftengine.kernels import abi
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton.builds import TABLE
from ftengine.kernels.triton.expert_calls import AdmissionTables, empty_tables, rate_numbers
from ftengine.quant import format_named, panel32

RATES = {"link_bytes_per_s": 25e9, "host_bytes_per_s": 50e9, "host_left_bytes_per_s": 30e9}
"""Until the section that measures them has run."""
_STAY = 0.85
"""Chance that a place of the router keeps its expert from one step to the next."""
_MOST_BANKS = 8
"""Banks with bytes of their own; more layers than these share them, far apart in any cache."""


@dataclass(frozen=True)
class Shape:
    """Routed experts of a model."""

    layers: int
    experts: int
    places: int
    hidden: int
    inter: int

    def only(self, layers: int) -> Shape:
        """Fewer layers."""
        return replace(self, layers=layers)


@dataclass(frozen=True)
class Tools:
    """Device, launcher and the CPU's kernels."""

    device: GpuDevice
    launcher: Launcher
    kernels: NativeKernels

    @classmethod
    def open(cls, device: GpuDevice, folder: Path) -> Tools:
        """With the shipped kernels; others are compiled into the folder where Triton is there."""
        cache = KernelCache(TABLE, folder, compile_kernel)
        return cls(device, Launcher(device.driver, TABLE, cache), NativeKernels.load())

    def close(self) -> None:
        """Give everything back."""
        self.launcher.close()
        self.device.close()


def router(shape: Shape, steps: int, seed: int = 7) -> torch.Tensor:
    """Experts per step and layer; most stay. Shape: int32 [steps, layers, places]."""
    drawn = torch.Generator().manual_seed(seed)
    now = torch.stack(
        [
            torch.randperm(shape.experts, generator=drawn)[: shape.places]
            for _ in range(shape.layers)
        ]
    )
    found = []
    for _ in range(steps):
        for layer in range(shape.layers):
            for place in range(shape.places):
                if float(torch.rand(1, generator=drawn)) > _STAY:
                    fresh = int(torch.randint(shape.experts, (1,), generator=drawn))
                    if fresh not in now[layer]:
                        now[layer, place] = fresh
        found.append(now.clone())
    return torch.stack(found).to(torch.int32)


def random_bank(shape: Shape, fmt: str, seed: int) -> ExpertBank:
    """A bank of small random numbers: a few experts quantised, the others the same bytes again."""
    layout = panel32.expert_layout(fmt, fmt, shape.hidden, shape.inter)
    data = page_aligned(shape.experts * layout.row_bytes).view(shape.experts, layout.row_bytes)
    drawn = torch.Generator().manual_seed(seed)
    kind = format_named(fmt)
    for expert in range(min(4, shape.experts)):
        wide, tall = (shape.inter, shape.hidden), (shape.hidden, shape.inter)
        gate, up, down = (
            kind.quantize((torch.randn(size, generator=drawn) * 0.05).numpy())
            for size in (wide, wide, tall)
        )
        pair, last = panel32.pack_pair(fmt, gate, up), panel32.pack(fmt, down)
        row = data[expert].numpy()
        row[layout.gate_up_offset : layout.gate_up_offset + len(pair)] = pair
        row[layout.down_offset : layout.down_offset + len(last)] = last
    for expert in range(4, shape.experts):
        data[expert] = data[expert % 4]
    return ExpertBank(data, layout, fmt, fmt, shape.hidden, shape.inter)


class Rig:
    """One pool and one captured step over it. A context manager; banks are pinned meanwhile."""

    def __init__(
        self,
        tools: Tools,
        shape: Shape,
        fmt: str,
        slots: int,
        mode: str,
        rates: Mapping[str, float] = RATES,
        budget_bytes: int = 0,
    ) -> None:
        self._tools, self._shape, self._mode, self._rates = tools, shape, mode, rates
        device = tools.device
        self._banks = [random_bank(shape, fmt, n) for n in range(min(shape.layers, _MOST_BANKS))]
        self.row_bytes = self._banks[0].row_bytes
        self.num_slots = slots or max(budget_bytes // self.row_bytes, 2 * shape.places)
        self.num_slots = min(self.num_slots, shape.layers * shape.experts, 1 << 15)
        for bank in self._banks:
            device.driver.register_host(bank.address, bank.data.numel())
        self._pool = device.allocate(self.num_slots * self.row_bytes)
        sizes = PairSizes(1, shape.places, shape.hidden)
        self._buffers = MoeBuffers(device.allocate, sizes, shape.inter)
        self._side = Stream(device.driver)
        library = abi.load_library(tools.kernels.path)
        self._pairs = CpuPairs(device.driver, library, sizes)
        layers = [self._layer(number % len(self._banks)) for number in range(shape.layers)]
        self._hand_off = HandOff(
            device.driver, self._pairs.tasks([item.bank for item in layers], 1), library
        )
        self._hand_off.start()
        self._memory: list[torch.Tensor] = []
        self._tables = self._make_tables()
        branch = None if mode == "fetch" else CpuSide(self._side, self._pairs, self._hand_off)
        self._step = MoeStep(
            tools.launcher, device.compute, layers, self._buffers, self._tables, branch
        )
        self._step.prepare(1)
        self._routes = router(shape, 64)
        self._at = 0
        self._graphs: StepGraphs | None = None
        # fixed inputs of all layers of a step: [layers, places] on the device
        self._ids = self._taken(4 * shape.layers * shape.places)
        self._x = torch.randn(1, shape.hidden, generator=torch.Generator().manual_seed(1))
        self._buffers.x.copy_(self._x)
        self._buffers.weights.fill_(1.0 / shape.places)

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        device = self._tools.device
        device.synchronize()
        self._hand_off.close()
        if self._graphs is not None:
            self._graphs.close()
        self._step.close()
        self._pairs.close()
        self._side.close()
        for memory in (self._pool, *self._buffers.memory, *self._memory):
            device.release(memory)
        for bank in self._banks:
            device.driver.unregister_host(bank.address)

    def reset(self) -> None:
        """An empty pool and the first routes again."""
        fresh = self._fresh_tables()
        for name, value in vars(fresh).items():
            getattr(self._tables, name).copy_(value)
        self._at = 0

    def step_once(self, captured: bool = True) -> torch.Tensor:
        """One step of all layers; the last layer's output. Shape: [1, hidden] on the CPU."""
        self._load_routes()
        if captured:
            self._captured().run(1)
        else:
            self._enqueue(1)
        self._tools.device.synchronize()
        self._at += 1
        return self._buffers.out.cpu().clone()

    def on_cpu(self) -> torch.Tensor:
        """The last layer's output of the step before, by the CPU's kernels."""
        ids = self._routes[(self._at - 1) % len(self._routes)][-1:]
        bank = self._banks[(self._shape.layers - 1) % len(self._banks)]
        weights = torch.full(ids.shape, 1.0 / self._shape.places)
        return self._tools.kernels.expert_ffn(self._x, ids.contiguous(), weights, bank)

    def seconds(self, steps: int) -> float:
        """Mean seconds of a captured step, routes changing."""
        self.step_once()
        begun = time.perf_counter()
        for _ in range(steps):
            self._load_routes()
            self._captured().run(1)
            self._at += 1
        return (time.perf_counter() - begun) / steps

    def totals(self) -> dict[str, int]:
        """Hits, misses, fills and experts on the CPU since the last call."""
        names = ("hits", "misses", "fills", "on_cpu")
        found = dict(zip(names, self._tables.totals.tolist(), strict=False))
        self._tables.totals[:4].zero_()
        return found

    def link_rate(self, rows: int = 256) -> float:
        """Bytes per second of the copy engine from pinned memory, row after row."""
        self._copy_rows(8)
        self._tools.device.synchronize()
        begun = time.perf_counter()
        self._copy_rows(rows)
        self._tools.device.synchronize()
        return rows * self.row_bytes / (time.perf_counter() - begun)

    def host_rate(self, link_busy: bool = False, repeats: int = 20) -> float:
        """Bytes of expert rows that the CPU's kernel computes from per second."""
        shape, device = self._shape, self._tools.device
        ids = torch.arange(shape.places, dtype=torch.int32)[None]
        weights = torch.ones(1, shape.places)
        used = 0.0
        for repeat in range(repeats):
            bank = self._banks[repeat % len(self._banks)]
            if link_busy:
                self._copy_rows(64)
            begun = time.perf_counter()
            self._tools.kernels.expert_ffn(
                self._x, (ids + repeat * shape.places) % shape.experts, weights, bank
            )
            used += time.perf_counter() - begun
        device.synchronize()
        return repeats * shape.places * self.row_bytes / used

    def _copy_rows(self, rows: int) -> None:
        device, shape = self._tools.device, self._shape
        pool = self._pool.view(self.num_slots, self.row_bytes)
        for row in range(rows):
            bank = self._banks[row % len(self._banks)]
            device.copy(pool[row % self.num_slots], bank.data[row % shape.experts])

    def _load_routes(self) -> None:
        routes = self._routes[self._at % len(self._routes)].reshape(-1)
        self._ids.view(torch.int32).copy_(routes)

    def _enqueue(self, tokens: int) -> None:
        stream, size = self._tools.device.compute, 4 * self._shape.places
        for layer in range(self._shape.layers):
            stream.copy_inside(
                self._buffers.ids.data_ptr(), self._ids.data_ptr() + layer * size, size
            )
            self._step.enqueue(layer, tokens)

    def _captured(self) -> StepGraphs:
        if self._graphs is None:
            self._tools.device.synchronize()
            self._graphs = StepGraphs(
                self._tools.device.compute, self._enqueue, (1,), self._hand_off
            )
            self._graphs.capture()
        return self._graphs

    def _layer(self, number: int) -> DeviceLayer:
        bank, driver = self._banks[number], self._tools.device.driver
        if driver.device_address(bank.address) != bank.address:
            raise EngineError("kernels see pinned memory elsewhere than the CPU; not covered here")
        slots = replace(bank, data=self._pool.view(self.num_slots, self.row_bytes))
        return DeviceLayer(bank, bank.data, slots)

    def _fresh_tables(self) -> AdmissionTables:
        rates = Rates(**dict(self._rates))
        numbers = rate_numbers(rates, self._mode)
        return empty_tables(self._shape.layers, self._shape.experts, self.num_slots, numbers)

    def _make_tables(self) -> AdmissionTables:
        """The tables in device memory of exact size."""
        fresh, placed = self._fresh_tables(), {}
        for name, value in vars(fresh).items():
            memory = self._taken(value.numel() * value.element_size())
            placed[name] = memory.view(value.dtype)
            placed[name].copy_(value)
        return AdmissionTables(**placed)

    def _taken(self, num_bytes: int) -> torch.Tensor:
        memory = self._tools.device.allocate(num_bytes)
        self._memory.append(memory)
        return memory
