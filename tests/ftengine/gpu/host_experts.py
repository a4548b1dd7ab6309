"""The kernels of a GPU's expert store played on the host, over the store's own tables.

Admission here is plain LRU: what the real kernel decides is its own test's business. Grouped
products compute whole experts; the first of them only remembers its input.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from ftengine.device.cuda import GpuDevice
from ftengine.experts.gpu import StoreSettings
from ftengine.experts.gpu_store import GpuStore
from ftengine.experts.host import Readahead, Shared
from ftengine.experts.policy.mirror import LENT
from ftengine.experts.policy.rates import Rates
from ftengine.gpu.kernel_cache import KernelCache
from ftengine.gpu.launcher import Launcher
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.triton import builds
from ftengine.kernels.triton.builds import TABLE
from tests.ftengine.gpu.fake_driver import FakeGpu, wrap
from tests.ftengine.gpu.host_kernels import Played, Values, array, fake_compiler, play

RATES = Rates(25e9, 50e9, 30e9)
CPU_RATES = Rates(1e9, 500e9, 400e9)
"""A machine whose link is so slow that the CPU computes every miss."""


@dataclass
class PlayedStore(Played):
    """All kernels that the store launches."""

    _gemm_x: tuple[int, int] = (0, 0)
    computed: list[str] = field(default_factory=list)

    def install(self) -> None:
        super().install()
        play(self.gpu, "group.count_pairs", self._count_pairs)
        play(self.gpu, "group.group_pairs", self._group_pairs)
        play(self.gpu, "grouped_gemm.arrange.f32", self._arrange)
        play(self.gpu, "grouped_gemm.gate_up_gemm.f32", self._gate_up_gemm)
        play(self.gpu, "grouped_gemm.down_gemm.f32", self._down_gemm)
        play(self.gpu, "rows.add_rows", self._add_rows)

    def _admission(self, v: Values) -> None:
        """Hits are refreshed; of the misses all, half or none are filled, by the mode."""
        experts, slots, pairs = v["num_experts"], v["num_slots"], v["num_pairs"]
        slot_of = array(v["slot_of"] + 4 * v["layer"] * experts, np.int32, experts)
        every = array(v["slot_of"], np.int32, (v["layer"] + 1) * experts)
        owner_of = array(v["owner_of"], np.int32, slots)
        stamp_of = array(v["stamp_of"], np.int64, slots)
        clock = array(v["clock"], np.int64, 3)
        wanted = list(dict.fromkeys(array(v["ids"], np.int32, pairs).tolist()))
        mode = int(array(v["rates"], np.float64, 11)[9])
        misses = [item for item in wanted if slot_of[item] < 0]
        for item in wanted:
            if slot_of[item] >= 0:
                stamp_of[slot_of[item]] = clock[1]
        fills = misses[: {0: (len(misses) + 1) // 2, 2: len(misses), 3: 0}[mode]]
        in_use = {int(slot_of[item]) for item in wanted if slot_of[item] >= 0}
        for place, item in enumerate(fills):
            free = [s for s in np.argsort(stamp_of, kind="stable").tolist() if s not in in_use]
            slot = free[0]
            assert stamp_of[slot] < LENT, "a slot that is lent to a prefill was taken"
            if owner_of[slot] >= 0:
                array(v["slot_of"], np.int32, owner_of[slot] + 1)[owner_of[slot]] = -1
            owner_of[slot], stamp_of[slot] = v["layer"] * experts + item, clock[1]
            every[v["layer"] * experts + item] = slot
            in_use.add(slot)
            array(v["fills"], np.int32, len(fills), 2)[place] = (item, slot)
        clock[0] += 1
        clock[1] += 1
        array(v["rows"], np.int32, pairs)[:] = slot_of[array(v["ids"], np.int32, pairs)]
        found = (len(fills), len(misses) - len(fills), len(wanted) - len(misses), len(misses))
        array(v["found"], np.int32, 4)[:] = found
        totals = array(v["totals"], np.int64, 4)
        totals += (found[2], found[3], found[0], found[1])

    def _count_pairs(self, v: Values) -> None:
        ids, rows = self._groups(v)
        array(v["counts"], np.int32, v["num_experts"])[:] = [
            np.count_nonzero(ids == expert) if rows[expert] >= 0 else 0
            for expert in range(v["num_experts"])
        ]

    def _group_pairs(self, v: Values) -> None:
        ids, rows = self._groups(v)
        tiles = array(v["tiles"], np.int32, v["num_tiles"], 3)
        tiles[:, 2] = 0
        pairs, at, tile = array(v["pairs"], np.int32, v["num_pairs"]), 0, 0
        for expert in np.flatnonzero(array(v["counts"], np.int32, v["num_experts"])).tolist():
            mine = np.flatnonzero(ids == expert)
            pairs[at : at + mine.size] = mine
            for start in range(0, mine.size, builds.GEMM_ROWS):
                tiles[tile] = (rows[expert], at + start, min(mine.size - start, builds.GEMM_ROWS))
                tile += 1
            at += mine.size

    def _groups(self, v: Values) -> tuple[np.ndarray, np.ndarray]:
        return (
            array(v["ids"], np.int32, v["num_pairs"]),
            array(v["row_of"], np.int32, v["num_experts"]),
        )

    def _arrange(self, v: Values) -> None:
        ctypes.memmove(v["out"], v["x"], 4 * v["num_rows"] * v["cols"])

    def _gate_up_gemm(self, v: Values) -> None:
        self._gemm_x = v["x"], v["num_places"]

    def _down_gemm(self, v: Values) -> None:
        address, places = self._gemm_x
        hidden = v["rows"]
        tiles = array(v["tiles"], np.int32, v["num_tiles"], 3)
        for row, first, count in tiles[tiles[:, 2] > 0]:
            pairs = array(v["pairs"] + 4 * int(first), np.int32, count)
            tokens = pairs // places
            x = array(address, np.float32, int(tokens.max()) + 1, hidden)[tokens]
            start = v["bank"] + int(row) * v["row_bytes"]
            data = torch.from_numpy(array(start, np.uint8, 1, v["row_bytes"]))
            ids = torch.zeros(count, 1, dtype=torch.int32)
            found = self.kernels.expert_ffn(
                torch.from_numpy(x), ids, torch.ones(count, 1), replace(self.bank, data=data)
            )
            array(v["out"], np.float32, int(pairs.max()) + 1, hidden)[pairs] = found.numpy()

    def _merge(self, v: Values) -> None:
        """Into what is there: the store always accumulates."""
        shape = v["num_tokens"], v["hidden"]
        out = array(v["out"], np.float32, *shape)
        before = out.copy()
        super()._merge(v)
        out += before

    def _add_rows(self, v: Values) -> None:
        rows, width = v["num_rows"], v["width"]
        assert v["source_stride"] == v["target_stride"] == width
        target = array(v["target"], np.float32, rows, width)
        target += np.float32(v["factor"]) * array(v["source"], np.float32, rows, width)


@dataclass(frozen=True)
class Inputs:
    """One layer's work on the device, and what its output was before."""

    x: torch.Tensor
    ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor


class StoreBench:
    """A store of a few layers on the stand-in."""

    def __init__(
        self,
        gpu: FakeGpu,
        library: Path,
        folder: Path,
        banks: list[ExpertBank],
        strategy: str,
        slots: int,
        places: int = 2,
        rates: Rates = RATES,
        readahead: Readahead | None = None,
    ) -> None:
        self.kernels = NativeKernels.load(library, num_threads=2)
        self.device = GpuDevice(gpu.driver(), wrap)
        self.banks = banks
        self.places = places
        self.launcher = Launcher(
            self.device.driver, TABLE, KernelCache(TABLE, folder, fake_compiler, None)
        )
        self.tools = GpuTools(self.device, self.launcher, self.kernels, "f32")
        settings = StoreSettings(strategy, rates, experts_per_token=places)
        self.store = GpuStore(self.tools, settings)
        self.layers = [self.store.add_layer(bank, readahead) for bank in banks]
        self.played = PlayedStore(gpu, self.kernels, banks[0])
        self.played.install()
        self._memory: list[torch.Tensor] = []
        self._closed = False
        self.store.start(slots)

    def close(self) -> None:
        """Give everything back; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self.device.synchronize()
        self.store.close()
        self.launcher.close()
        while self._memory:
            self.device.release(self._memory.pop())
        self.device.close()

    def wait_pinned(self) -> None:
        """Until kernels may read the banks."""
        assert self.store._pins is not None
        assert self.store._pins.wait(10)

    def inputs(self, tokens: int) -> list[Inputs]:
        """Device buffers for every layer of a step, each of its own."""
        hidden = self.banks[0].hidden
        return [
            Inputs(
                self._take(tokens, hidden),
                self._take(tokens, self.places).view(torch.int32),
                self._take(tokens, self.places),
                self._take(tokens, hidden),
            )
            for _ in self.banks
        ]

    def draw(self, inputs: list[Inputs], seed: int, experts: int = 0) -> None:
        """Random contents; ids below `experts`, distinct within a token."""
        drawn = torch.Generator().manual_seed(seed)
        count = experts or self.banks[0].num_experts
        for item in inputs:
            item.x.copy_(torch.randn(item.x.shape, generator=drawn))
            chosen = [torch.randperm(count, generator=drawn)[: self.places] for _ in item.ids]
            item.ids.copy_(torch.stack(chosen))
            item.weights.copy_(torch.rand(item.weights.shape, generator=drawn))
            item.out.copy_(torch.randn(item.out.shape, generator=drawn))

    def expected(self, inputs: list[Inputs]) -> list[np.ndarray]:
        """Every pair by the CPU's kernel alone, summed as the played merge does."""
        return [self._expected(bank, item) for bank, item in zip(self.banks, inputs, strict=True)]

    def enqueue(self, inputs: list[Inputs], shared: Shared | None = None) -> None:
        """All layers of a step."""
        for layer, item in zip(self.layers, inputs, strict=True):
            layer.add_to(item.x, item.ids, item.weights, item.out, shared)

    def step(
        self,
        inputs: list[Inputs],
        decode: bool = True,
        shared: Shared | None = None,
        eager: bool = False,
    ) -> None:
        """A whole step, from begin to end."""
        self.store.begin_step(inputs[0].x.shape[0], decode, eager)
        self.enqueue(inputs, shared)
        self.device.synchronize()
        if self.store.hand_off is not None:
            self.store.hand_off.check()
        self.store.end_step()

    def check(self, inputs: list[Inputs], wanted: list[np.ndarray]) -> None:
        """The same bits."""
        for item, result in zip(inputs, wanted, strict=True):
            np.testing.assert_array_equal(item.out.numpy(), result)

    def residents(self) -> dict[tuple[int, int], int]:
        """(layer, expert) -> slot, read from the device; the tables agree."""
        assert self.store._pool is not None
        mirror = self.store._pool.tables.read()
        mirror.check()
        found = {}
        for layer in range(mirror.num_layers):
            for expert, slot in enumerate(mirror.slots_of(layer).tolist()):
                if slot >= 0:
                    found[layer, expert] = slot
        return found

    def check_slots(self) -> None:
        """Every resident's bytes are the bank's."""
        assert self.store._slots is not None
        for (layer, expert), slot in self.residents().items():
            bank = self.banks[layer]
            row = self.store._slots.row(slot, bank.row_bytes)
            assert torch.equal(row, bank.data[expert]), (layer, expert, slot)

    def _expected(self, bank: ExpertBank, item: Inputs) -> np.ndarray:
        out = np.zeros(item.out.shape, np.float32)
        weights = item.weights.numpy()
        for token in range(len(out)):
            for place in range(self.places):
                one = item.ids[token : token + 1, place : place + 1].contiguous()
                part = self.kernels.expert_ffn(
                    item.x[token : token + 1].contiguous(), one, torch.ones(1, 1), bank
                )
                out[token] += weights[token, place] * part[0].numpy()
        out += item.out.numpy()
        return out

    def _take(self, rows: int, cols: int) -> torch.Tensor:
        self._memory.append(self.device.allocate(4 * rows * cols))
        return self._memory[-1].view(torch.float32).view(rows, cols)
