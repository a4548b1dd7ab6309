"""Host banks as the experts' truth: a bank, and how to ask for its rows ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.kernels.dispatch import ExpertBank

Readahead = Callable[[Iterable[int]], None]
"""Told which experts are read next, where a bank lies in a file."""


Shared = Callable[[torch.Tensor], torch.Tensor]
"""Experts that every token takes: float32 [n, hidden] -> [n, hidden]. Called once a layer."""


class Experts(Protocol):
    """The routed experts of one layer, wherever they live."""

    def add_to(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        out: torch.Tensor,
        shared: Shared | None = None,
    ) -> None:
        """Add the weighted sum of each token's experts to `out`, in routing order.

        shared: added to `out` after that, but computed while experts are on their way; it is given
        x and must keep its result out of `out`.
        Shape: x and out float32 [n, hidden]; expert_ids int32 and weights float32 [n, k].
        """


class ExpertStore(Protocol):
    """Owner of all routed experts; told of each layer's bank, in layer order, while building."""

    @property
    def host_bytes(self) -> int:
        """Bytes of all banks, in memory or mapped."""

    def add_layer(self, bank: ExpertBank, readahead: Readahead | None) -> Experts:
        """Take the next MoE layer's bank."""


@dataclass(frozen=True)
class HostBank:
    """All experts of one layer in host memory or in a mapped file."""

    bank: ExpertBank
    readahead: Readahead | None = None

    def row(self, expert: int) -> torch.Tensor:
        """Shape: uint8 [row_bytes]."""
        return self.bank.data[expert]

    def will_read(self, experts: Iterable[int]) -> None:
        """Start reading these experts from disk, where they are not in memory."""
        if self.readahead is not None:
            self.readahead(experts)
