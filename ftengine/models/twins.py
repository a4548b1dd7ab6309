"""A dense MLP and experts that take the same input, and what multiplies or joins late."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.dispatch import Kernels
from ftengine.layers.context import StepContext
from ftengine.layers.mlp import Mlp
from ftengine.layers.moe import Moe
from ftengine.layers.norm import Norm
from ftengine.models.decoder import Step


@dataclass(frozen=True)
class Twins:
    """norm(mlp(norm(x))) + norm(moe(norm(x))) of the stream x itself; the router sees x."""

    mlp: Mlp
    moe: Moe
    kernels: Kernels
    mlp_norm: Norm
    mlp_post: Norm
    moe_norm: Norm
    moe_post: Norm

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Add both outputs to `out`. Shape: normed (the stream), out [n, hidden]."""
        inner, found = (context.buffers.room(i, normed.shape[0]) for i in (2, 3))
        self.kernels.fill_rows(found, 0.0)
        self.mlp.add_to(self.mlp_norm.apply(normed, inner), found)
        self.kernels.add_rows(self.mlp_post.apply(found, found), out)
        self.kernels.fill_rows(found, 0.0)
        self.moe.add_to(self.moe_norm.apply(normed, inner), found, context, seen=normed)
        self.kernels.add_rows(self.moe_post.apply(found, found), out)


class LeftOver:
    """What one layer leaves for the end of the next. Shape: rows float32 [n, hidden]."""

    def __init__(self) -> None:
        self.rows = torch.empty(0, 0)


@dataclass(frozen=True)
class Late:
    """An MLP now; experts of the same input are left over."""

    mlp: Mlp
    moe: Moe
    left: LeftOver

    def add_to(self, normed: torch.Tensor, out: torch.Tensor, context: StepContext) -> None:
        """Add the MLP's output to `out`. Shape: normed, out [n, hidden]."""
        self.left.rows = torch.zeros_like(normed)
        self.moe.add_to(normed, self.left.rows, context)
        self.mlp.add_to(normed, out)


@dataclass(frozen=True)
class TakingLate:
    """A feed-forward, then what the layer before left over."""

    step: Step
    left: LeftOver

    def add_to_stream(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> None:
        """Shape: stream [n, hidden]; normed the same, written."""
        self.step.add_to_stream(stream, normed, context)
        stream.add_(context.of_rows(self.left.rows, stream.shape[0]))


@dataclass(frozen=True)
class Scaled:
    """A feed-forward, then the stream times a number."""

    step: Step
    factor: float
    kernels: Kernels

    def add_to_stream(
        self, stream: torch.Tensor, normed: torch.Tensor, context: StepContext
    ) -> None:
        """Shape: stream [n, hidden]; normed the same, written."""
        self.step.add_to_stream(stream, normed, context)
        self.kernels.add_rows(stream, stream, self.factor, accumulate=False)
