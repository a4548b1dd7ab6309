"""Native mixers with a state: the gated delta net and the gated short convolution.

Each is one call between the mixer's two projections, for all spans of a step: what differs from
step to step is data, so a recorded step may make the call again. Mamba-2 is computed in torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ftengine.errors import EngineError
from ftengine.kernels import abi
from ftengine.kernels.reference.states import ReferenceStates
from ftengine.kernels.state_operands import DeltaWeights, SpanIndex, StateRows, check_operand


class NativeStates(ReferenceStates):
    """StateOps; `call` makes one call of the library, given its name and struct."""

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
        check_operand(
            "convolution state", conv_states, torch.float32, (taps - 1, weights.mixed_width)
        )
        shape = (weights.value_heads, weights.key_dim, weights.value_dim)
        check_operand("state", delta_states, torch.float32, shape)
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
        check_operand("convolution state", state, torch.float32, (taps - 1, width))
        check_operand("conv", conv, torch.float32, (taps, width))
        if bias is not None:
            check_operand("conv bias", bias, torch.float32, (width,))
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
