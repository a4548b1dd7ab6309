"""One layer's routed work, cut into (token, place) pairs, and the exact sum of its parts.

Every pair's expert output is computed alone, so it is the same bits whichever branch computed it;
the parts of a token are summed place by place, never in order of arrival.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ftengine.experts.host import Shared
from ftengine.kernels.dispatch import ExpertBank, Kernels

_NOWHERE = -1


@dataclass(frozen=True)
class Routed:
    """What the router asked of one layer.

    Shape: x and out float32 [n, hidden]; expert_ids int32 and weights float32 [n, k].
    shared: the layer's shared experts, where it has some.
    """

    x: torch.Tensor
    expert_ids: torch.Tensor
    weights: torch.Tensor
    out: torch.Tensor
    shared: Shared | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the step."""
        return self.x.shape[0]

    @property
    def num_pairs(self) -> int:
        """Tokens times experts per token."""
        return self.expert_ids.numel()

    def flat_ids(self) -> npt.NDArray[np.int32]:
        """Expert of each pair, tokens in order. Shape: int32 [n * k]."""
        found: npt.NDArray[np.int32] = self.expert_ids.numpy().reshape(-1)
        return found


class PairKernel:
    """Computes pairs from any bank. One call at a time: the native pool and its scratch are one.

    May be used from the engine thread and from the CPU branch.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._lock = threading.Lock()

    def add_all(self, routed: Routed, rows: torch.Tensor, bank: ExpertBank) -> None:
        """Every pair from one bank, summed by the kernel itself. Shape: rows int32 [n, k]."""
        with self._lock:
            self._kernels.expert_ffn(
                routed.x, rows, routed.weights, bank, out=routed.out, accumulate=True
            )

    def shared(self, routed: Routed) -> torch.Tensor | None:
        """What the shared experts give, where the layer has some. Shape: float32 [n, hidden]."""
        if routed.shared is None:
            return None
        # an accelerator computes these itself and needs no turn; here they use the CPU kernels
        with self._lock:
            return routed.shared(routed.x)

    def compute(
        self,
        routed: Routed,
        row_of: Mapping[int, int],
        bank: ExpertBank,
        parts: torch.Tensor,
    ) -> None:
        """Fill the parts of the pairs whose expert is in `row_of` (expert -> row of the bank).

        Shape: parts float32 [n * k, hidden]; other pairs' rows are left alone.
        """
        rows = rows_of(routed.flat_ids(), row_of, int(routed.expert_ids.max()) + 1)
        pairs = torch.from_numpy(np.flatnonzero(rows != _NOWHERE))
        if pairs.numel() == 0:
            return
        ids = torch.from_numpy(rows)[pairs].reshape(-1, 1).contiguous()
        x = routed.x[pairs // routed.expert_ids.shape[1]]
        with self._lock:
            found = self._kernels.expert_ffn(x, ids, torch.ones(ids.shape), bank)
        parts[pairs] = found


class SharedWork:
    """The shared experts of one layer: computed once, as early as somebody has time for it."""

    def __init__(self, kernel: PairKernel, routed: Routed) -> None:
        self._kernel = kernel
        self._routed = routed
        self._found: torch.Tensor | None = None
        self._done = False

    def compute(self) -> None:
        """Do it now, unless it is done."""
        if not self._done:
            self._done = True
            self._found = self._kernel.shared(self._routed)

    def add(self) -> None:
        """Add the result to routed.out; the routed experts are in it already."""
        self.compute()
        if self._found is not None:
            self._routed.out.add_(self._found)


def rows_of(
    flat_ids: npt.NDArray[np.int32], row_of: Mapping[int, int], num_ids: int
) -> npt.NDArray[np.int32]:
    """Row of each pair's expert, -1 where it has none. Shape: int32 [pairs]."""
    table = np.full(num_ids, _NOWHERE, dtype=np.int32)
    for expert, row in row_of.items():
        if expert < num_ids:
            table[expert] = row
    found: npt.NDArray[np.int32] = table[flat_ids]
    return found


def slot_rows(routed: Routed, slots: Mapping[int, int]) -> torch.Tensor:
    """Slot of each token's experts, all of which are in `slots`. Shape: int32 [n, k]."""
    rows = rows_of(routed.flat_ids(), slots, int(routed.expert_ids.max()) + 1)
    return torch.from_numpy(rows).view(routed.expert_ids.shape)


def merge(routed: Routed, parts: torch.Tensor) -> None:
    """Add each token's weighted parts to `out`, place 0 first.

    Each step is a fused multiply-add rounded to float32, as the CPU kernel's sum is: the product
    of two float32 is exact in float64.
    """
    count = routed.expert_ids.shape[1]
    wide = parts.view(routed.num_tokens, count, -1)
    weights = routed.weights.double()
    total = torch.zeros_like(wide[:, 0])
    for place in range(count):
        product = weights[:, place, None] * wide[:, place].double()
        total = product.add_(total).float()
    routed.out.add_(total)
