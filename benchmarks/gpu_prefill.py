"""Chunks of a prompt through a GPU's expert store: against the link, against compute, no overlap.

Routed experts only, with a random model and an even router; for gpu_sections.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.gpu_rig import RATES, Shape, Tools, random_bank
from ftengine.errors import EngineError
from ftengine.experts.gpu import StoreSettings
from ftengine.experts.gpu_store import GpuStore
from ftengine.experts.host import Experts
from ftengine.experts.policy.rates import Rates
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.operands import ExpertBank

_REPEATS = 3
_PART = 8
"""The store's buffers are so small a part of its slots each; policy/prefill.py."""


class Chunks:
    """One store and one chunk of tokens, the same for every layer. Closed by close."""

    def __init__(
        self, tools: Tools, banks: list[ExpertBank], shape: Shape, strategy: str, dot: str
    ) -> None:
        self._device = tools.device
        self._shape = shape
        self._resident = strategy == "resident"
        kit = GpuTools(tools.device, tools.launcher, tools.kernels, dot)
        settings = StoreSettings(strategy, _rates(), experts_per_token=shape.places)
        self.store = GpuStore(kit, settings)
        self._layers: list[Experts] = [self.store.add_layer(bank, None) for bank in banks]
        every = shape.layers * shape.experts
        self.store.start(every if self._resident else _PART * shape.experts)
        self._memory: list[torch.Tensor] = []

    def fill(self, tokens: int) -> None:
        """Inputs and routing on the device."""
        shape, drawn = self._shape, torch.Generator().manual_seed(3)
        self.x = self._put(torch.randn(tokens, shape.hidden, generator=drawn))
        order = torch.rand(tokens, shape.experts, generator=drawn).argsort(dim=1)
        self.ids = self._put(order[:, : shape.places].to(torch.int32))
        self.weights = self._put(torch.full((tokens, shape.places), 1.0 / shape.places))
        self.out = self._put(torch.zeros(tokens, shape.hidden))

    def seconds(self) -> float:
        """Of a chunk on a cold pool: the best of a few."""
        return min(self._once() for _ in range(_REPEATS))

    def close(self) -> None:
        """Give everything back but the device."""
        self._device.synchronize()
        self.store.close()
        while self._memory:
            self._device.release(self._memory.pop())

    def _once(self) -> float:
        if not self._resident:
            self.store.recover()
        self._device.synchronize()
        begun = time.perf_counter()
        self.store.begin_step(self.x.shape[0], False)
        for layer in self._layers:
            layer.add_to(self.x, self.ids, self.weights, self.out)
        self._device.synchronize()
        seconds = time.perf_counter() - begun
        self.store.end_step()
        return seconds

    def _put(self, values: torch.Tensor) -> torch.Tensor:
        self._memory.append(self._device.allocate(values.numel() * values.element_size()))
        there = self._memory[-1].view(values.dtype).view(values.shape)
        there.copy_(values)
        return there


def _rates() -> Rates:
    link, host, left = RATES.values()
    return Rates(link, host, left)


def prefill(tools: Tools, shape: Shape, fmt: str, tokens: int, dot: str) -> Mapping[str, Any]:
    """Seconds of a chunk: streamed, streamed without overlap, resident, and the link alone."""
    banks = [random_bank(shape, fmt, layer) for layer in range(shape.layers)]
    streamed = Chunks(tools, banks, shape, "fetch", dot)
    try:
        streamed.fill(tokens)
        both = streamed.seconds()
        counters = streamed.store.counters.total()
        moved = counters.link_bytes // _REPEATS
        _check_rows(tools, streamed, banks, shape)
        streamed.store._pipe.overlaps = False
        one_by_one = streamed.seconds()
        link = _link_seconds(tools, banks, moved)
    finally:
        streamed.close()
    resident = Chunks(tools, banks, shape, "resident", dot)
    try:
        resident.fill(tokens)
        computing = resident.seconds()
    finally:
        resident.close()
    return {
        "tokens": tokens,
        "layers": shape.layers,
        "link_bytes": moved,
        "streamed_s": both,
        "without_overlap_s": one_by_one,
        "resident_s": computing,
        "link_s": link,
        "over_limit": both / max(link, computing),
    }


def _check_rows(tools: Tools, chunks: Chunks, banks: list[ExpertBank], shape: Shape) -> None:
    """A few rows against the CPU: one more chunk on zeros, all layers summed."""
    chunks.out.zero_()
    chunks._once()
    found = chunks.out[:4].cpu()
    x, ids = chunks.x[:4].cpu().contiguous(), chunks.ids[:4].cpu().contiguous()
    weights = torch.full((4, shape.places), 1.0 / shape.places)
    wanted = sum(tools.kernels.expert_ffn(x, ids, weights, bank) for bank in banks)
    assert isinstance(wanted, torch.Tensor)
    error = float((found - wanted).abs().max() / wanted.abs().max())
    if not error < 2e-2:
        raise EngineError(f"a chunk's rows are wrong by {error} of the largest number")


def _link_seconds(tools: Tools, banks: list[ExpertBank], num_bytes: int) -> float:
    """The copy engine alone, over as many bytes from pinned memory."""
    device = tools.device
    size = min(bank.data.numel() for bank in banks)
    target = device.allocate(size)
    device.synchronize()
    begun, left, turn = time.perf_counter(), num_bytes, 0
    while left > 0:
        count = min(size, left)
        device.copies.copy_in(target.data_ptr(), banks[turn % len(banks)].address, count)
        left, turn = left - count, turn + 1
    device.synchronize()
    seconds = time.perf_counter() - begun
    device.release(target)
    return seconds
