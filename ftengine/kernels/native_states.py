"""Native mixers with a state: the gated delta net and the gated short convolution.

Each is one call between the mixer's two projections, for all spans of a step: what differs from
step to step is data, so a recorded step may make the call again. Their meaning: layers/delta.py and
layers/short_conv.py, which compute the same in torch for kernels without these calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ftengine.errors import EngineError
from ftengine.kernels import abi


@dataclass(frozen=True)
class SpanIndex:
    """Where each sequence's tokens stand in a step, as kernels read it.

    Shape: start int32 [m + 1]; slot and keep int64 [m], m at least the spans of the step, the last
    of which ends with the step. keep: the slot that a copy of the state after a span goes to, -1 =
    none. No span is empty.
    """

    start: torch.Tensor
    slot: torch.Tensor
    keep: torch.Tensor


@dataclass(frozen=True)
class StateRows:
    """One layer's states. parts: those of slot 0; the next slot's lie slot_stride numbers on."""

    parts: tuple[torch.Tensor, ...]
    slot_stride: int
    num_slots: int


@dataclass(frozen=True)
class DeltaWeights:
    """What a gated delta net has beside its projections. Shape: as layers/delta.py says.

    q_weight and k_weight [key_dim] belong to the norms of heads, norm_weight [value_dim] to that of
    the result.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: torch.Tensor
    decay_rate: torch.Tensor
    dt_bias: torch.Tensor
    q_weight: torch.Tensor
    k_weight: torch.Tensor
    norm_weight: torch.Tensor
    qk_eps: float
    norm_eps: float

    def __post_init__(self) -> None:
        _check("conv", self.conv, torch.float32, (self.conv.shape[0], self.mixed_width))
        for name, value in (("decay_rate", self.decay_rate), ("dt_bias", self.dt_bias)):
            _check(name, value, torch.float64, (self.value_heads,))
        for name, value in (("q_weight", self.q_weight), ("k_weight", self.k_weight)):
            _check(name, value, torch.float32, (self.key_dim,))
        _check("norm_weight", self.norm_weight, torch.float32, (self.value_dim,))

    @property
    def mixed_width(self) -> int:
        """Numbers of q, k and v of one token."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def row_width(self) -> int:
        """Numbers of q, k, v, z, b and a of one token."""
        return self.mixed_width + self.value_heads * (self.value_dim + 2)


class NativeStates:
    """The calls; `call` makes one of the library, given its name and struct."""

    def __init__(self, call: Callable[[str, bytes], None]) -> None:
        self._call = call

    def gated_delta(
        self,
        wide: torch.Tensor,
        weights: DeltaWeights,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """All between the projections. Shape: wide [n, row_width]; out [n, all value heads]."""
        tokens = wide.shape[0]
        _check_rows("gated_delta input", wide, tokens, weights.row_width)
        _check_rows("gated_delta output", out, tokens, weights.value_heads * weights.value_dim)
        conv_states, delta_states = states.parts
        taps = weights.conv.shape[0]
        _check("convolution state", conv_states, torch.float32, (taps - 1, weights.mixed_width))
        shape = (weights.value_heads, weights.key_dim, weights.value_dim)
        _check("state", delta_states, torch.float32, shape)
        packed = abi.GATED_DELTA.pack(
            abi.GATED_DELTA.size,
            0,
            wide.data_ptr(),
            wide.stride(0),
            tokens,
            *(weights.key_heads, weights.value_heads, weights.key_dim, weights.value_dim),
            taps,
            weights.conv.data_ptr(),
            weights.decay_rate.data_ptr(),
            weights.dt_bias.data_ptr(),
            weights.q_weight.data_ptr(),
            weights.k_weight.data_ptr(),
            weights.norm_weight.data_ptr(),
            *_span_values(spans, states),
            conv_states.data_ptr(),
            delta_states.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            weights.qk_eps,
            weights.norm_eps,
        )
        self._call("gated_delta", packed)

    def short_conv(
        self,
        wide: torch.Tensor,
        conv: torch.Tensor,
        bias: torch.Tensor | None,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """out = C * conv(B * x). Shape: wide [n, 3 * width], B | C | x; out [n, width]."""
        tokens, (taps, width) = wide.shape[0], conv.shape
        _check_rows("short_conv input", wide, tokens, 3 * width)
        _check_rows("short_conv output", out, tokens, width)
        (state,) = states.parts
        _check("convolution state", state, torch.float32, (taps - 1, width))
        _check("conv", conv, torch.float32, (taps, width))
        if bias is not None:
            _check("conv bias", bias, torch.float32, (width,))
        packed = abi.SHORT_CONV.pack(
            abi.SHORT_CONV.size,
            0,
            wide.data_ptr(),
            wide.stride(0),
            tokens,
            width,
            taps,
            conv.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            *_span_values(spans, states),
            state.data_ptr(),
            out.data_ptr(),
            out.stride(0),
        )
        self._call("short_conv", packed)


def _span_values(spans: SpanIndex, states: StateRows) -> tuple[int, ...]:
    pointers = (spans.start.data_ptr(), spans.slot.data_ptr(), spans.keep.data_ptr())
    return (*pointers, states.slot_stride, states.num_slots)


def _check_rows(what: str, x: torch.Tensor, tokens: int, width: int) -> None:
    if x.dtype != torch.float32 or x.shape != (tokens, width) or x.stride(1) != 1:
        raise EngineError(
            f"{what}: need float32 [{tokens}, {width}] with contiguous rows, got {x.dtype} "
            f"{tuple(x.shape)}",
            code="bad_operand",
        )


def _check(what: str, x: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if x.dtype != dtype or x.shape != shape or not x.is_contiguous():
        raise EngineError(
            f"{what}: need contiguous {dtype} {shape}, got {x.dtype} {tuple(x.shape)}",
            code="bad_operand",
        )
