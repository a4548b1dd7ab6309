"""The lightning indexer of sparse attention: small heads say which tokens the large ones see.

Source: DeepSeek-V3.2, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ftengine.kernels.latent_operands import Chosen, IndexHeads, Turn
from ftengine.layers.context import StepContext
from ftengine.layers.linear import Linear
from ftengine.layers.rotary import RopeTables

_KEY_EPS = 1e-6


class Choice:
    """The choice that the layers up to the next indexer share, of the step under way.

    found: None where every token sees all there is.
    """

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.found: Chosen | None = None


@dataclass(frozen=True)
class Indexer:
    """I(t, s) = sum over heads of w relu(q . k_s / sqrt d); the top_k tokens s are chosen.

    kv_index: which pages hold its keys. q_up: from the layer's query latent. Shape: norm weight
    and bias float32 [head_dim]. The rope turns the first dimensions.
    """

    kv_index: int
    num_heads: int
    head_dim: int
    q_up: Linear
    norm_weight: torch.Tensor
    norm_bias: torch.Tensor
    rope: RopeTables
    interleaved: bool
    choice: Choice
    _index: IndexHeads = field(init=False, repr=False)
    _turn: Turn = field(init=False, repr=False)

    def __post_init__(self) -> None:
        index = IndexHeads(
            self.num_heads,
            self.head_dim,
            self.choice.top_k,
            (self.num_heads * self.head_dim) ** -0.5,
            self.norm_weight,
            self.norm_bias,
            _KEY_EPS,
        )
        object.__setattr__(self, "_index", index)
        object.__setattr__(self, "_turn", Turn(self.rope.cos, self.rope.sin, self.interleaved))

    def choose(self, q_latent: torch.Tensor, rest: torch.Tensor, context: StepContext) -> None:
        """Store the new keys and write the choice. Shape: rest [n, head_dim + num_heads + ...]."""
        dim, kernels = self.head_dim, self.q_up.kernels
        pool = context.pool.keys[self.kv_index]
        kernels.index_store(
            rest[:, :dim], self._index, self._turn, context.positions, context.slots, pool
        )
        self.choice.found = None
        if kernels.sees_all(context, self.choice.top_k):
            return
        q = self.q_up.apply(q_latent, context.buffers.attended[:, : self.num_heads * dim])
        factors = rest[:, dim : dim + self.num_heads]
        self.choice.found = kernels.index_choose(q, factors, self._index, self._turn, context, pool)
