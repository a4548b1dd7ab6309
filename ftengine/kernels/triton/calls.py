"""One launch with its tensors: what a stream, a graph or Triton's interpreter then runs.

expert_calls.py and layer_calls.py make them; nothing is launched here. On a device the addresses of
the tensors are passed, so they must stay where they are for as long as a captured graph lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ftengine.gpu.kernel_table import Build

Value = torch.Tensor | int | float | None
"""None stands for a pointer that a build does not read."""


@dataclass(frozen=True)
class KernelCall:
    """A build and its arguments by name."""

    build: Build
    values: Mapping[str, Value]

    def arguments(self) -> dict[str, int | float]:
        """Numbers and addresses, as the launcher takes them."""
        return {name: _number(value) for name, value in self.values.items()}


def _number(value: Value) -> int | float:
    if value is None:
        return 0
    return value.data_ptr() if isinstance(value, torch.Tensor) else value
