"""What kernels of latent attention and of its indexer are given beside plain tensors.

Latent attention keeps one row per token, read by all heads: a latent, then a rotated key. Their
arithmetic: reference/latent.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.kernels.operands import HeadLayout


class StepPages(Protocol):
    """Where the tokens of a step stand and which pages their sequences have.

    Shape: positions int32 [n]; query_start int32 [s + 1]; context_len int32 [s], new tokens
    included; page_table int32 [s, max_pages].
    """

    @property
    def positions(self) -> torch.Tensor: ...
    @property
    def query_start(self) -> torch.Tensor: ...
    @property
    def context_len(self) -> torch.Tensor: ...
    @property
    def page_table(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class Turn:
    """A rotation by position. Shape: cos, sin float32 [positions, rotated / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor
    interleaved: bool

    @property
    def half(self) -> int:
        """Pairs of numbers that turn."""
        return self.cos.shape[1]


@dataclass(frozen=True)
class LatentHeads:
    """Units: numbers per head; widths of the latents, q_rank 0 = none."""

    count: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    q_rank: int

    @property
    def head_dim(self) -> int:
        """Numbers of a query."""
        return self.nope_dim + self.rope_dim

    @property
    def kept(self) -> int:
        """Numbers of a row that is kept."""
        return self.kv_rank + self.rope_dim

    @property
    def layout(self) -> HeadLayout:
        """As attention over latents sees them: one key head, which all heads share."""
        return HeadLayout(self.count, 1, self.kept)


@dataclass(frozen=True)
class LatentWeights:
    """What the heads make of latents. norm_weight belongs to the latent's own norm.

    Shape: norm_weight float32 [kv_rank]; key_up [heads, nope_dim, kv_rank]; value_up [heads,
    kv_rank, value_dim], float32, or bfloat16 on a device. temper: factor of queries at each
    position, float32 [positions].
    """

    norm_weight: torch.Tensor
    eps: float
    key_up: torch.Tensor
    value_up: torch.Tensor
    scale: float
    temper: torch.Tensor | None = None


@dataclass(frozen=True)
class IndexHeads:
    """The small heads that choose keys, top_k of them for each token; scale of their scores.

    Shape: norm_weight and norm_bias float32 [head_dim], of the keys' norm.
    """

    count: int
    head_dim: int
    top_k: int
    scale: float
    norm_weight: torch.Tensor
    norm_bias: torch.Tensor
    eps: float


@dataclass(frozen=True)
class Chosen:
    """The keys that tokens see, in ascending order.

    Shape: slots [n, top_k], what is left over means nothing; counts int32 [n].
    """

    slots: torch.Tensor
    counts: torch.Tensor
