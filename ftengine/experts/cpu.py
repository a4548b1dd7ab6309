"""Routed experts computed by the CPU kernels, straight from the host bank."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.experts.counters import ExpertCounters, LayerCounters
from ftengine.experts.host import HostBank, Readahead, Shared
from ftengine.kernels.dispatch import ExpertBank, Kernels


@dataclass(frozen=True)
class CpuExperts:
    """All experts of one layer on the CPU."""

    bank: ExpertBank
    kernels: Kernels

    def add_to(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Add the weighted sum of each token's experts to `out`, in routing order.

        Shape: x and out float32 [n, hidden]; expert_ids int32 and weights float32 [n, k].
        """
        self.kernels.expert_ffn(x, expert_ids, weights, self.bank, out=out, accumulate=True)

    def compute(
        self, x: torch.Tensor, expert_ids: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """The sum by itself, where a kernel set keeps it until the next call. Shape: as add_to."""
        return self.kernels.expert_ffn(x, expert_ids, weights, self.bank)


@dataclass(frozen=True)
class CountedCpuExperts:
    """Routed experts of one layer on the CPU, counted."""

    host: HostBank
    kernels: Kernels
    counters: LayerCounters

    def add_to(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        shared: Shared | None = None,
    ) -> None:
        """As Experts.add_to. With one processor there is nothing to compute `shared` beside."""
        distinct = set(expert_ids.flatten().tolist())
        self.counters.misses += len(distinct)
        self.counters.on_cpu += len(distinct)
        self.host.will_read(distinct)
        self.kernels.expert_ffn(x, expert_ids, weights, self.host.bank, out=out, accumulate=True)
        if shared is not None:
            out.add_(shared(x))


class CpuStore:
    """The store of an engine without a device: every expert is computed where it lies."""

    def __init__(self, kernels: Kernels) -> None:
        self.counters = ExpertCounters()
        self.host_bytes = 0
        self._kernels = kernels

    def add_layer(self, bank: ExpertBank, readahead: Readahead | None) -> CountedCpuExperts:
        """Take the next MoE layer's bank."""
        self.host_bytes += bank.data.numel()
        return CountedCpuExperts(
            HostBank(bank, readahead), self._kernels, self.counters.add_layer()
        )
