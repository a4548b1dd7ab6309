"""The one model: embed, layers, norm, head. What differs between families stands in the specs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.layers.attention import Attention
from ftengine.layers.context import BufferShape, StepContext
from ftengine.layers.embedding import Embedding
from ftengine.layers.linear import Linear
from ftengine.layers.mlp import Mlp
from ftengine.layers.moe import Moe
from ftengine.layers.norm import RmsNorm


@dataclass(frozen=True)
class DecoderLayer:
    """stream += attention(norm(stream)); stream += feed_forward(norm(stream))."""

    attention_norm: RmsNorm
    attention: Attention
    feed_forward_norm: RmsNorm
    feed_forward: Mlp | Moe


@dataclass(frozen=True)
class Decoder:
    """A complete model on the CPU. Hidden states are float32."""

    embedding: Embedding
    layers: tuple[DecoderLayer, ...]
    norm: RmsNorm
    head: Linear
    buffer_shape: BufferShape

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.embedding.vocab_size

    def forward(self, token_ids: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Run the layers and the last norm, storing keys and values on the way.

        The last layer's feed-forward runs only for the rows in context.wanted.
        Shape: token_ids int64, at least as long as the step; result float32 [rows wanted, hidden],
        valid until the next call.
        """
        buffers = context.buffers
        stream, normed = buffers.stream, buffers.normed
        self.embedding.apply(token_ids[: stream.shape[0]], stream)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            layer.attention_norm.apply(stream, normed)
            layer.attention.add_to_stream(normed, context)
            if index == last and context.wanted is not None:
                if context.wanted.shape[0] == 0:
                    return stream[:0]
                stream = stream[context.wanted]
                normed = normed[: stream.shape[0]]
            layer.feed_forward_norm.apply(stream, normed)
            if isinstance(layer.feed_forward, Moe):
                layer.feed_forward.add_to(normed, stream, buffers)
            else:
                layer.feed_forward.add_to(normed, stream)
        return self.norm.apply(stream, normed)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: hidden float32 [n, hidden] as forward gives it; out float32 [n, vocab_size]."""
        return self.head.apply(hidden, out)
