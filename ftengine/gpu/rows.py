"""Row operations on a GPU: a launch each, rows as far apart as their strides say."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ftengine.kernels.triton import layer_calls, row_calls
from ftengine.kernels.triton.calls import KernelCall


class RowLaunches:
    """The part of Kernels that reference/rows.py is the meaning of."""

    _launch: Callable[[KernelCall], None]

    def add_rows(
        self,
        source: torch.Tensor,
        out: torch.Tensor,
        factor: float = 1.0,
        accumulate: bool = True,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out (+)= factor * source + bias."""
        self._launch(row_calls.add_rows(source, out, bias, accumulate, factor))
        return out

    def fill_rows(self, out: torch.Tensor, value: float) -> None:
        """out = value."""
        self._launch(row_calls.squash_rows(None, out, "fill", value))

    def gate_rows(
        self,
        x: torch.Tensor,
        gate: torch.Tensor,
        out: torch.Tensor,
        kind: str = "plain",
        index: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """out = x * kind(gate)."""
        self._launch(row_calls.gate_rows(x, gate, out, kind, index))
        return out

    def move_heads(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        heads: int,
        from_dim: int,
        to_dim: int,
        turns: int = 1,
    ) -> torch.Tensor:
        """Make heads longer or shorter, or put them in another order."""
        self._launch(row_calls.move_heads(x, out, heads, from_dim, to_dim, turns))
        return out

    def squash_rows(
        self, x: torch.Tensor, out: torch.Tensor, kind: str, limit: float = 1.0
    ) -> torch.Tensor:
        """out = kind(x)."""
        self._launch(row_calls.squash_rows(x, out, kind, limit))
        return out

    def centre_rows(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Take off the mean of each row."""
        self._launch(layer_calls.centre_rows(x, out))
        return out

    def group_norm(
        self, x: torch.Tensor, weight: torch.Tensor, groups: int, eps: float, out: torch.Tensor
    ) -> torch.Tensor:
        """Normalise equal parts of rows."""
        self._launch(layer_calls.rms_norm(x, weight, eps, out, groups=groups))
        return out
