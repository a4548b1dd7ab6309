"""Specs of mixers that keep a state and no pages: Kimi's delta attention, Mamba-1, lightning.

The rest of the vocabulary stands in spec.py, which takes these in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

States = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class KdaSpec:
    """Delta rule with a decay for every channel of the keys; as many key heads as value heads.

    rank: width between the two matrices that give the decays, and of those that give the gates, 0 =
    one matrix each. bound: 0 = decays are -rate softplus(f), else bound * sigmoid(rate f), below 0.
    rates: `kda.rate` holds exp(a_log), of either sign, instead of `kda.a_log`.
    """

    num_heads: int
    head_dim: int
    kernel: int
    rank: int = 0
    bound: float = 0.0
    rates: bool = False

    kv_shapes: ClassVar[tuple[()]] = ()
    reference = "Kimi delta attention computed by torch"

    @property
    def width(self) -> int:
        """All heads together."""
        return self.num_heads * self.head_dim

    @property
    def in_width(self) -> int:
        """q, k, v, what leads to decays and gates, and a number per head."""
        return 3 * self.width + 2 * (self.rank or self.width) + self.num_heads

    @property
    def state_shapes(self) -> States:
        """Inputs the convolutions still need; one matrix per head."""
        state = (self.num_heads, self.head_dim, self.head_dim)
        return ((self.kernel - 1, 3 * self.width), state)


@dataclass(frozen=True)
class Mamba1Spec:
    """Mamba-1 with norms on dt, B and C. Units: dt_rank, numbers that give dt.

    rates: `mamba.rate` holds -exp(a_log) instead of `mamba.a_log`.
    """

    width: int
    state_dim: int
    dt_rank: int
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    rates: bool = False

    kv_shapes: ClassVar[tuple[()]] = ()
    reference = "Mamba-1 layers computed by torch"

    @property
    def in_width(self) -> int:
        """Rows of `mamba.in`."""
        return 2 * self.width

    @property
    def state_shapes(self) -> States:
        """Inputs the convolution still needs; a row per channel."""
        return ((self.kernel - 1, self.width), (self.width, 1, self.state_dim))


@dataclass(frozen=True)
class LightningSpec:
    """Linear attention whose state shrinks by a fixed factor per head.

    rates: S <- exp(-rate) S + k v^T, one for each head.
    """

    num_heads: int
    head_dim: int
    rates: tuple[float, ...]

    kv_shapes: ClassVar[tuple[()]] = ()
    reference = "lightning attention computed by torch"

    @property
    def width(self) -> int:
        """All heads together."""
        return self.num_heads * self.head_dim

    @property
    def in_width(self) -> int:
        """q, k, v and the gate."""
        return 4 * self.width

    @property
    def state_shapes(self) -> States:
        """One matrix per head."""
        return ((self.num_heads, self.head_dim, self.head_dim),)


ScanSpec = KdaSpec | Mamba1Spec | LightningSpec
