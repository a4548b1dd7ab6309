"""A prefix outside the pools: keys, values and states of a text as plain bytes in host memory.

Only the shape; prefix_store.py takes prefixes out of the pools and puts them back, parking decides
which and where they go.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DetachedPrefix:
    """The first len(tokens) tokens of texts of one salt.

    Shape: pages uint8 [pages_for(len(tokens)), bytes of a page], in order; checkpoints (number of
    tokens, row float32 [width of a state]), ascending, none above len(tokens). All on the CPU.
    """

    salt: str
    tokens: tuple[int, ...]
    pages: torch.Tensor
    checkpoints: tuple[tuple[int, torch.Tensor], ...] = ()

    @property
    def num_bytes(self) -> int:
        """Memory it takes."""
        rows = sum(row.numel() * row.element_size() for _, row in self.checkpoints)
        return self.pages.numel() + rows
