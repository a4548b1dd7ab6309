"""The one model: embed, layers, norm, head. What differs between families stands in the specs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.kernels.dispatch import Kernels
from ftengine.layers.context import StepContext
from ftengine.layers.linear import Linear
from ftengine.layers.norm import Norm
from ftengine.models.widths import BufferShape


class Block(Protocol):
    """A mixer or a feed-forward."""

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Add the block's output to `out`. Shape: normed, out [n, hidden]."""


class Embed(Protocol):
    """Token ids to the stream that the first layer gets."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    def apply(self, token_ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: token_ids int64 [n]; out float32 [n, width of the stream], written."""


class Step(Protocol):
    """What a layer does to the stream: a mixer or a feed-forward with what lies around it."""

    def add_to_stream(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> None:
        """Shape: stream [n, hidden]; normed the same, written."""


class NoStep:
    """The place of a block that a layer does not have."""

    def add_to_stream(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> None:
        """Leave everything as it is."""


@dataclass(frozen=True)
class Parallel:
    """Two blocks that take the same input."""

    first: Block
    second: Block

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Add both outputs to `out`. Shape: normed, out [n, hidden]."""
        self.first.add_to(normed, out, context)
        self.second.add_to(normed, out, context)


@dataclass(frozen=True)
class Carried:
    """stream = carry * norm(stream) + block(norm(stream))."""

    norm: Norm
    block: Block
    carry: float
    kernels: Kernels

    def add_to_stream(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> None:
        """Shape: stream [n, hidden]; normed the same, written."""
        self.norm.apply(stream, normed)
        self.kernels.add_rows(normed, stream, self.carry, accumulate=False)
        self.block.add_to(normed, stream, context)


@dataclass(frozen=True)
class Residual:
    """stream += scale * post_norm(block(norm(stream)))."""

    norm: Norm
    block: Block
    kernels: Kernels
    post_norm: Norm | None = None
    scale: float = 1.0

    def add_to_stream(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> None:
        """Shape: stream [n, hidden]; normed the same, written."""
        self.norm.apply(stream, normed)
        self._add(normed, stream, context)

    def add_to_wanted(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> torch.Tensor:
        """As add_to_stream, of the wanted rows alone, by a block that can. Shape: [r, hidden]."""
        self.norm.apply(stream, normed)
        wanted = context.only_wanted(stream)
        self._add(normed, wanted, context)
        return wanted

    def _add(self, normed: torch.Tensor, stream: torch.Tensor, context: StepContext) -> None:
        if self.post_norm is None and self.scale == 1.0:
            self.block.add_to(normed, stream, context)
            return
        branch = context.buffers.branch[: stream.shape[0]]
        self.kernels.fill_rows(branch, 0.0)
        self.block.add_to(normed, branch, context)
        if self.post_norm is not None:
            self.post_norm.apply(branch, branch)
        self.kernels.add_rows(branch, stream, self.scale)


@dataclass(frozen=True)
class DecoderLayer:
    """First the mixer, then the feed-forward."""

    mixer: Step
    feed_forward: Step


@dataclass(frozen=True)
class Decoder:
    """A complete model on the CPU. Hidden states are float32.

    logits = softcap(logit_scale * head); softcap(x) = c tanh(x / c), 0 = none. last_mixer: that of
    the last layer, if it can add to the wanted rows alone.
    """

    embedding: Embed
    layers: tuple[DecoderLayer, ...]
    norm: Norm
    head: Linear
    buffer_shape: BufferShape
    embedding_norm: Norm
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    last_mixer: Residual | None = None

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self.embedding.vocab_size

    def forward(self, token_ids: torch.Tensor, context: StepContext) -> torch.Tensor:
        """Run the layers and the last norm, storing keys, values and states on the way.

        The last layer's feed-forward runs only for the rows in context.wanted, and its mixer, where
        it can, does for them alone what no later token needs.
        Shape: token_ids int64, at least as long as the step; result float32 [rows wanted, hidden],
        valid until the next call.
        """
        buffers = context.buffers
        stream, normed = buffers.stream, buffers.normed
        self.embedding.apply(token_ids[: stream.shape[0]], stream)
        self.embedding_norm.apply(stream, stream)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            if index == last and context.wanted is not None:
                stream = self._wanted_after(layer.mixer, stream, normed, context)
                if stream.shape[0] == 0:
                    return stream
                normed = normed[: stream.shape[0]]
            else:
                layer.mixer.add_to_stream(stream, normed, context)
            layer.feed_forward.add_to_stream(stream, normed, context)
        return self.norm.apply(stream, normed)

    def _wanted_after(
        self, mixer: Step, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> torch.Tensor:
        """The wanted rows of the stream behind the last mixer. Shape: [r, width]."""
        if self.last_mixer is not None and context.reach is not None:
            return self.last_mixer.add_to_wanted(stream, normed, context)
        mixer.add_to_stream(stream, normed, context)
        return context.only_wanted(stream)

    def logits(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Shape: hidden float32 [n, hidden] as forward gives it; out float32 [n, vocab_size]."""
        self.head.apply(hidden, out)
        kernels = self.head.kernels
        if self.logit_scale != 1.0:
            kernels.add_rows(out, out, self.logit_scale, accumulate=False)
        if self.logit_softcap:
            kernels.squash_rows(out, out, "tanh", self.logit_softcap)
        return out
