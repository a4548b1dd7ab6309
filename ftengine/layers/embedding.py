"""Token ids to vectors: rows of a table that stays in the checkpoint's own format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ftengine.kernels.dispatch import HOST_EMBED_FORMATS, Kernels
from ftengine.quant import format_named


@dataclass(frozen=True)
class Embedding:
    """Shape: table uint8 [vocab_size, row_bytes] in format `fmt`; scale multiplies every vector."""

    table: torch.Tensor
    fmt: str
    hidden: int
    scale: float
    kernels: Kernels

    @property
    def vocab_size(self) -> int:
        """Number of rows."""
        return int(self.table.shape[0])

    def apply(self, token_ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: token_ids int64 [n]; out float32 [n, hidden], written."""
        if self.fmt in HOST_EMBED_FORMATS:
            self.kernels.embed_rows(self.table, self.fmt, self.hidden, token_ids, out=out)
        else:
            rows = self.table.numpy()[token_ids.numpy()]
            values = format_named(self.fmt).dequantize(np.ascontiguousarray(rows))
            out.copy_(torch.from_numpy(values))
        if self.scale != 1.0:
            self.kernels.add_rows(out, out, self.scale, accumulate=False)
        return out
