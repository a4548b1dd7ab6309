"""Multi-head latent attention in its absorbed form: all heads read one small vector per token.

What the heads do with it is one call of the kernels; here is what lies around. Source: DeepSeek-V2,
2024.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ftengine.kernels.dispatch import Kernels
from ftengine.kernels.latent_operands import LatentHeads, LatentWeights, Turn
from ftengine.layers.context import StepContext, fitting
from ftengine.layers.indexer import Choice, Indexer
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm
from ftengine.layers.rotary import RopeTables


@dataclass(frozen=True)
class LatentAttention:
    """One layer. kv_index: which pages hold its latents.

    project gives the query or its latent, the latent with its key, what the indexer asks for, and
    a gate of one number per head where there is one. Shape: key_up float32 [heads, nope_dim,
    kv_rank]; value_up [heads, kv_rank, value_dim]. temper: factor of each position, [positions].
    """

    kv_index: int
    heads: LatentHeads
    project: Linear
    q_norm: RmsNorm | None
    q_up: Linear | None
    kv_norm: RmsNorm
    key_up: torch.Tensor
    value_up: torch.Tensor
    out: Linear
    rope: RopeTables
    interleaved: bool
    scale: float
    temper: torch.Tensor | None
    gated: bool
    indexer: Indexer | None
    choice: Choice | None
    kernels: Kernels
    _weights: LatentWeights = field(init=False, repr=False)
    _turn: Turn = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weights = LatentWeights(
            self.kv_norm.weight,
            self.kv_norm.eps,
            self.key_up,
            self.value_up,
            self.scale,
            self.temper,
        )
        object.__setattr__(self, "_weights", weights)
        object.__setattr__(self, "_turn", Turn(self.rope.cos, self.rope.sin, self.interleaved))

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Attend and add the result to `out`. Shape: normed, out [n, hidden]."""
        heads, room = self.heads, context.buffers.attended
        wide = self.project.apply(normed, fitting(context.buffers.qkv, self.project.rows))
        q_width, width = heads.q_rank or heads.count * heads.head_dim, heads.count * heads.head_dim
        key_at = q_width + heads.kv_rank
        q, rest = wide[:, :q_width], wide[:, key_at + heads.rope_dim :]
        if self.q_norm is not None and self.q_up is not None:
            self.q_norm.apply(q, q)
            if self.indexer is not None:
                self.indexer.choose(q, rest, context)
            q = self.q_up.apply(q, room[:, :width])
        pool = context.pool.keys[self.kv_index]
        self.kernels.latent_store(
            wide[:, q_width:key_at],
            wide[:, key_at : key_at + heads.rope_dim],
            self._weights,
            self._turn,
            context.positions,
            context.slots,
            pool,
        )
        attended = room[:, width : width + heads.count * heads.value_dim]
        chosen = None if self.choice is None else self.choice.found
        self.kernels.latent_attention(
            q, heads, self._weights, self._turn, context, pool, attended, chosen
        )
        if self.gated:
            gate = rest[:, -heads.count :].double().sigmoid().float()
            attended.view(*gate.shape, -1).mul_(gate[:, :, None])
        self.out.add_to(attended, out)
