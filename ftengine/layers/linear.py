"""Matrix products with packed weights. Several matrices that share an input may be one Linear."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.dispatch import Kernels, PackedWeight


@dataclass(frozen=True)
class LinearPart:
    """Rows [first, first + weight.rows) of the output. bias float32 [weight.rows]."""

    weight: PackedWeight
    first: int
    bias: torch.Tensor | None = None


@dataclass(frozen=True)
class Linear:
    """out = x @ W^T + bias. One part unless the rows come in different formats."""

    parts: tuple[LinearPart, ...]
    kernels: Kernels

    @property
    def rows(self) -> int:
        """Width of the output."""
        last = self.parts[-1]
        return last.first + last.weight.rows

    def between(self, first: int, end: int) -> Linear:
        """Rows [first, end) of the output as a Linear of its own, as PackedWeight.between."""
        parts = []
        for part in self.parts:
            low = max(first - part.first, 0)
            high = min(end - part.first, part.weight.rows)
            if low < high:
                bias = None if part.bias is None else part.bias[low:high]
                weight = part.weight.between(low, high)
                parts.append(LinearPart(weight, part.first + low - first, bias))
        return Linear(tuple(parts), self.kernels)

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: x float32 [n, cols]; out float32 [n, rows], written."""
        if len(self.parts) == 1:
            part = self.parts[0]
            return self.kernels.linear(x, part.weight, out=out, bias=part.bias)
        for part in self.parts:
            view = out[:, part.first : part.first + part.weight.rows]
            self.kernels.linear(x, part.weight, out=view, bias=part.bias)
        return out

    def add_to(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Like apply, but the product is added to `out`; for residual streams."""
        for part in self.parts:
            whole = len(self.parts) == 1
            view = out if whole else out[:, part.first : part.first + part.weight.rows]
            self.kernels.linear(x, part.weight, out=view, bias=part.bias, accumulate=True)
        return out


@dataclass(frozen=True)
class TiledLinear:
    """A Linear whose columns belong to heads that run in turns, one of each group.

    groups of `count` heads each stand one after the other in what it is given.
    """

    inner: Linear
    groups: int
    count: int

    def add_to(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """As Linear.add_to; x is left in that order. Shape: x [n, groups * count * size]."""
        heads = self.groups * self.count
        size = x.shape[1] // heads
        self.inner.kernels.move_heads(x, x, heads, size, size, self.groups)
        return self.inner.add_to(x, out)
