"""Where weights come from (Weights), and the small modules made of them for all builders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.errors import LoadError
from ftengine.experts.host import Readahead
from ftengine.kernels.dispatch import ExpertBank, Kernels, PackedWeight
from ftengine.layers.linear import Linear, LinearPart
from ftengine.layers.norm import LayerNorm, NoNorm, Norm, RmsNorm
from ftengine.models.spec import Activation, ModelConfig
from ftengine.models.weight_names import RowPick


class Weights(Protocol):
    """Source of a model's weights, by our names. Raises: LoadError for a missing or odd one."""

    def vector(self, name: str) -> torch.Tensor:
        """All values in storage order. Shape: float32 [n]."""

    def matrix(self, name: str) -> torch.Tensor:
        """A matrix as numbers, whatever its format. Shape: float32 [rows, cols]."""

    def has(self, name: str) -> bool:
        """Whether the model holds a tensor of this name."""

    def table(self, name: str) -> tuple[torch.Tensor, str]:
        """Rows as stored, and their format. Shape: uint8 [rows, row_bytes]."""

    def packed(self, picks: Sequence[RowPick]) -> list[PackedWeight]:
        """Matrices one below the other, neighbours of one format joined."""

    def dense_bank(
        self, gate: RowPick | None, up: RowPick, down: RowPick, activation: Activation
    ) -> ExpertBank:
        """A dense MLP as a bank of one expert; gate None = it has none."""

    def bank(self, name: str, activation: Activation) -> ExpertBank:
        """All experts of one layer."""

    def readahead(self, name: str) -> Readahead | None:
        """How to ask for a bank's rows ahead of time; None where they are in memory."""


@dataclass(frozen=True)
class Materials:
    """Weights, kernels and what the config says of all norms."""

    config: ModelConfig
    weights: Weights
    kernels: Kernels

    def vector(self, name: str) -> torch.Tensor:
        """All values in storage order. Shape: float32 [n]."""
        return self.weights.vector(name)

    def decay_rate(self, prefix: str, given: bool) -> torch.Tensor:
        """How fast states decay, above 0; given: as rate or -rate. Shape: float64 [n]."""
        if given:
            return self.weights.vector(prefix + "rate").double().abs()
        return self.weights.vector(prefix + "a_log").double().exp()

    def norm_weight(self, name: str) -> torch.Tensor:
        """Weight of a norm as it is multiplied. Shape: float32 [n]."""
        stored = self.weights.vector(name)
        return 1 + stored if self.config.norm_add_one else stored

    def norm(self, name: str) -> Norm:
        """A norm over the hidden size."""
        norms, eps = self.config.norms, self.config.norm_eps
        if norms.centred:
            bias = self.weights.vector(name + ".bias") if norms.bias else None
            return LayerNorm(self.norm_weight(name), bias, eps, self.kernels)
        if norms.post_eps and name.endswith("_post_norm"):
            eps = norms.post_eps
        if norms.plain_final and name == "norm":
            return RmsNorm(self.weights.vector(name), eps, self.kernels)
        return RmsNorm(self.norm_weight(name), eps, self.kernels)

    def embedding_norm(self) -> Norm:
        """What the vectors of tokens go through."""
        if not self.config.norms.embedding:
            return NoNorm(self.kernels)
        return RmsNorm(torch.ones(self.config.hidden_size), self.config.norm_eps, self.kernels)

    def router_norm(self, router: str) -> RmsNorm:
        """The norm of what a router scores, with its weights and the square root of the size."""
        size = self.config.hidden_size
        return RmsNorm(
            self.weights.vector(router + ".norm") * size**-0.5, self.config.norm_eps, self.kernels
        )

    def linear(self, *parts: str | RowPick) -> Linear:
        """Matrices that share an input, with their biases, as one."""
        picks = [RowPick(part) if isinstance(part, str) else part for part in parts]
        bias = self._bias(picks)
        found: list[LinearPart] = []
        first = 0
        for weight in self.weights.packed(picks):
            own = None if bias is None else bias[first : first + weight.rows].contiguous()
            found.append(LinearPart(weight, first, own))
            first += weight.rows
        return Linear(tuple(found), self.kernels)

    def _bias(self, picks: Sequence[RowPick]) -> torch.Tensor | None:
        names = [pick.name + ".bias" for pick in picks]
        having = [name for name in names if self.weights.has(name)]
        if not having:
            return None
        if len(having) != len(names):
            raise LoadError(f"only {', '.join(having)} are there of {', '.join(names)}")
        return torch.cat([self._picked(pick) for pick in picks])

    def _picked(self, pick: RowPick) -> torch.Tensor:
        values = self.weights.vector(pick.name + ".bias")
        if not pick.groups:
            return values
        return values.view(pick.groups, -1)[:, pick.start : pick.stop].reshape(-1)
