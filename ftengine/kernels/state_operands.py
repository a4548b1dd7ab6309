"""What mixers with a state are given, and what a kernel set does for them, between projections.

Each is one call for all spans of a step: what differs from step to step is data, so that a recorded
or captured step may make the call again. Their meaning: reference/states.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from ftengine.errors import EngineError


@dataclass(frozen=True)
class SpanIndex:
    """Where each sequence's tokens stand in a step, as kernels read it.

    Shape: start int32 [m + 1]; slot and keep int64 [m]; position int32 [m], of a span's first token
    in its sequence; m at least `count`, the spans of the step, the last of which ends with the
    step. keep: the slot that a copy of the state after a span goes to, -1 = none. No span is empty;
    those of one sequence follow each other.
    """

    start: torch.Tensor
    slot: torch.Tensor
    keep: torch.Tensor
    position: torch.Tensor
    count: int


@dataclass(frozen=True)
class StateRows:
    """One layer's states. parts: those of slot 0; the next slot's lie slot_stride numbers on."""

    parts: tuple[torch.Tensor, ...]
    slot_stride: int
    num_slots: int

    def only(self, part: int) -> StateRows:
        """One part alone."""
        return replace(self, parts=self.parts[part : part + 1])

    def of_slot(self, slot: int) -> tuple[torch.Tensor, ...]:
        """The parts of one slot, as views to be changed in place."""
        return tuple(
            part.as_strided(
                part.shape, part.stride(), part.storage_offset() + slot * self.slot_stride
            )
            for part in self.parts
        )


@dataclass(frozen=True)
class DeltaHeads:
    """key_heads heads of q and k serve value_heads heads of v. Units: numbers per head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def key_width(self) -> int:
        """Numbers of all key heads."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Numbers of all value heads."""
        return self.value_heads * self.value_dim


@dataclass(frozen=True)
class DeltaWeights(DeltaHeads):
    """What a gated delta net has beside its projections.

    Shape: conv float32 [taps, q + k + v]; decay_rate and dt_bias float64 [value_heads]; q_weight
    and k_weight [key_dim] belong to the norms of heads, norm_weight [value_dim] to that of the
    result.
    """

    conv: torch.Tensor
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    q_weight: torch.Tensor
    k_weight: torch.Tensor
    norm_weight: torch.Tensor
    qk_eps: float
    norm_eps: float

    def __post_init__(self) -> None:
        check_operand("conv", self.conv, torch.float32, (self.conv.shape[0], self.mixed_width))
        for name, value in (("decay_rate", self.decay_rate), ("dt_bias", self.dt_bias)):
            check_operand(name, value, torch.float64, (self.value_heads,))
        for name, value in (("q_weight", self.q_weight), ("k_weight", self.k_weight)):
            check_operand(name, value, torch.float32, (self.key_dim,))
        check_operand("norm_weight", self.norm_weight, torch.float32, (self.value_dim,))

    @property
    def mixed_width(self) -> int:
        """Numbers of q, k and v of one token."""
        return 2 * self.key_width + self.value_width

    @property
    def row_width(self) -> int:
        """Numbers of q, k, v, z, b and a of one token."""
        return self.mixed_width + self.value_heads * (self.value_dim + 2)


@dataclass(frozen=True)
class Mamba2Weights:
    """What Mamba-2 has beside its projections and its norm. dt_limit: least and most of a step.

    Shape: conv float32 [taps, x + B + C], conv_bias the same width; decay_rate and dt_bias float64
    [heads]; skip float32 [heads].
    """

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    dt_limit: tuple[float, float]
    conv: torch.Tensor
    conv_bias: torch.Tensor | None
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    skip: torch.Tensor

    @property
    def width(self) -> int:
        """Numbers of all heads."""
        return self.heads * self.head_dim

    @property
    def mixed_width(self) -> int:
        """Numbers of x, B and C of one token."""
        return self.conv.shape[1]


class StateOps(Protocol):
    """Mixers with a state. Shape: wide float32 [n, what the first projection gives]; out [n, what
    the last one takes], written; both with contiguous rows.
    """

    def gated_delta(
        self,
        wide: torch.Tensor,
        weights: DeltaWeights,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """Convolution, delta rule, gated norm. wide: q | k | v, z, b, a; states: convolution's
        [taps - 1, q + k + v], then [value_heads, key_dim, value_dim].
        """

    def mamba2(
        self,
        wide: torch.Tensor,
        weights: Mamba2Weights,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """Convolution, recurrence, gate. wide: z, x | B | C, dt; states: convolution's [taps - 1, x
        + B + C], then [heads, head_dim, state_dim].
        """

    def short_conv(
        self,
        wide: torch.Tensor,
        conv: torch.Tensor,
        bias: torch.Tensor | None,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """out = C * conv(B * x). wide: B | C | x; conv [taps, width]; states [taps - 1, width]."""


def check_operand(what: str, x: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raises: EngineError("bad_operand") unless it is contiguous, of this type and shape."""
    if x.dtype != dtype or x.shape != shape or not x.is_contiguous():
        raise EngineError(
            f"{what}: need contiguous {dtype} {shape}, got {x.dtype} {tuple(x.shape)}",
            code="bad_operand",
        )
