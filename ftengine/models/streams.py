"""Several residual streams instead of one: mixed before each block, and mixed again after it.

The stream buffer holds them side by side, [n, count * hidden]. Source: DeepSeek-V4, 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.layers.context import StepContext
from ftengine.layers.norm import Norm
from ftengine.models.decoder import Block, Embed


@dataclass(frozen=True)
class MixWeights:
    """Makes mixing weights of all streams. Shape: fn float64 [outputs, count * hidden].

    base float64 [outputs]; scale float64, one for each kind of output. Units: norm_eps under the
    root of the norm without weights; eps added to weights and sums.
    """

    fn: torch.Tensor
    base: torch.Tensor
    scale: torch.Tensor
    count: int
    norm_eps: float
    eps: float

    def of(self, streams: torch.Tensor) -> torch.Tensor:
        """What fn makes of the normed streams. Shape: float32 [n, ...] -> float64 [n, outputs]."""
        wide = streams.double()
        size = wide.square().mean(dim=-1, keepdim=True)
        result: torch.Tensor = (wide * torch.rsqrt(size + self.norm_eps)) @ self.fn.T
        return result

    def collapsed(self, streams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The sum of the streams by weight. Shape: [n, count * hidden] -> [n, hidden]."""
        apart = streams.double().view(streams.shape[0], self.count, -1)
        return (weights[:, :, None] * apart).sum(dim=1).float()


@dataclass(frozen=True)
class HyperStep:
    """X_j = post_j block(norm(sum pre_n X_n)) + sum C_ij X_i, C with rows and columns of sum 1."""

    norm: Norm
    block: Block
    mix: MixWeights
    iterations: int

    def add_to_stream(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> None:
        """Shape: stream [n, count * hidden]; normed [n, hidden], written."""
        mix, count = self.mix, self.mix.count
        found = mix.of(stream)
        pre = torch.sigmoid(found[:, :count] * mix.scale[0] + mix.base[:count]) + mix.eps
        middle = slice(count, 2 * count)
        post = 2 * torch.sigmoid(found[:, middle] * mix.scale[1] + mix.base[middle])
        between = self._between(found[:, 2 * count :])
        self.norm.apply(mix.collapsed(stream, pre), normed)
        branch = torch.zeros_like(normed)
        self.block.add_to(normed, branch, context)
        apart = stream.double().view(stream.shape[0], count, -1)
        mixed = torch.einsum("nij,nid->njd", between, apart)
        mixed += post[:, :, None] * branch.double()[:, None, :]
        stream.copy_(mixed.view_as(stream))

    def _between(self, logits: torch.Tensor) -> torch.Tensor:
        """Shape: [n, count * count] -> [n, count, count]."""
        mix, count = self.mix, self.mix.count
        scaled = logits * mix.scale[2] + mix.base[2 * count :]
        # many steps on few numbers: numpy's overhead is the smaller one
        found = (torch.softmax(scaled.view(-1, count, count), dim=-1) + mix.eps).numpy()
        found /= found.sum(axis=-2, keepdims=True) + mix.eps
        for _ in range(self.iterations - 1):
            found /= found.sum(axis=-1, keepdims=True) + mix.eps
            found /= found.sum(axis=-2, keepdims=True) + mix.eps
        return torch.from_numpy(found)


@dataclass(frozen=True)
class StreamsNorm:
    """All streams to one, then the last norm."""

    norm: Norm
    mix: MixWeights

    def apply(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: x [n, count * hidden]; out [n, hidden], written."""
        mix = self.mix
        pre = torch.sigmoid(mix.of(x) * mix.scale + mix.base) + mix.eps
        return self.norm.apply(mix.collapsed(x, pre), out)


@dataclass(frozen=True)
class StreamsEmbedding:
    """A token's vector, as often as there are streams."""

    inner: Embed
    hidden: int
    count: int

    @property
    def vocab_size(self) -> int:
        """Number of rows."""
        return self.inner.vocab_size

    def apply(self, token_ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: token_ids int64 [n]; out float32 [n, count * hidden], written."""
        rows = self.inner.apply(token_ids, torch.empty(token_ids.shape[0], self.hidden))
        out.view(rows.shape[0], self.count, -1).copy_(rows[:, None, :])
        return out
