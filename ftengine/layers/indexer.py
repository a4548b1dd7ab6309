"""The lightning indexer of sparse attention: small heads say which tokens the large ones see.

Source: DeepSeek-V3.2, 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from ftengine.layers.context import StepContext
from ftengine.layers.linear import Linear
from ftengine.layers.paged import rows_at, sequences, slots_of, store_rows
from ftengine.layers.rotary import RopeTables, turn_first

_KEY_EPS = 1e-6


class Choice:
    """The choice that the layers up to the next indexer share, of the step under way.

    Shape: slots int64 [n, 1, top_k], -1 where fewer tokens are there.
    """

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.slots = torch.empty(0, 1, top_k, dtype=torch.int64)

    def sees_all(self, context: StepContext) -> torch.Tensor:
        """The tokens that nothing is kept from. Shape: bool [n]."""
        return context.positions < self.top_k


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
    _scale: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scale", (self.num_heads * self.head_dim) ** -0.5)

    def choose(self, q_latent: torch.Tensor, rest: torch.Tensor, context: StepContext) -> None:
        """Store the new keys and write the choice. Shape: rest [n, head_dim + num_heads + ...]."""
        count, dim = rest.shape[0], self.head_dim
        k = F.layer_norm(rest[:, :dim], (dim,), self.norm_weight, self.norm_bias, _KEY_EPS)
        k = turn_first(k[:, None], self.rope, context.positions, self.interleaved)[:, 0]
        keys = context.pool.keys[self.kv_index]
        store_rows(keys, k, context.slots)
        if not bool((~self.choice.sees_all(context)).any()):
            return
        q = self.q_up.apply(q_latent, torch.empty(count, self.num_heads * dim))
        q = q.view(count, self.num_heads, dim)
        q = turn_first(q, self.rope, context.positions, self.interleaved)
        weights = rest[:, dim : dim + self.num_heads] * self._scale
        chosen = torch.full((count, 1, self.choice.top_k), -1)
        for index, rows, length in sequences(context):
            slots = slots_of(context, index, length)
            scores = index_scores(q[rows], weights[rows], rows_at(keys, slots)[:, 0])
            hidden = torch.arange(length)[None, :] > context.positions[rows, None]
            best = best_first(scores.masked_fill_(hidden, float("-inf")), self.choice.top_k)
            chosen[rows, 0, : best.shape[1]] = torch.where(best < 0, -1, slots[best.clamp(min=0)])
        self.choice.slots = chosen


def index_scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Shape: q [n, heads, dim]; weights [n, heads]; keys [t, dim] -> [n, t]."""
    dots = torch.relu(q.flatten(0, 1) @ keys.T).view(q.shape[0], q.shape[1], -1)
    return torch.einsum("nht,nh->nt", dots, weights)


def best_first(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Places of the best scores in ascending order, -1 for those of -inf. Shape: [n, <= count]."""
    found = scores.topk(min(count, scores.shape[1]), dim=-1)
    places = found.indices.masked_fill(found.values == float("-inf"), scores.shape[1])
    ordered = places.sort(dim=-1).values
    return ordered.masked_fill(ordered == scores.shape[1], -1)
