"""Launches of layers with state, for all sequences of a step at once.

`states` is the part of one layer in the state pool, seen from slot 0; slot_stride numbers further
lies the same part of the next slot. slots names each sequence's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.kernels.triton import builds
from ftengine.kernels.triton.calls import KernelCall, Value


@dataclass(frozen=True)
class StateRows:
    """Shape: query_start, int32 [sequences + 1]; slots int64, context_len int32 [sequences]."""

    states: torch.Tensor
    slot_stride: int
    slots: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor

    def values(self) -> dict[str, Value]:
        """The arguments that all of them take."""
        return {
            "states": self.states,
            "slot_stride": self.slot_stride,
            "slots": self.slots,
            "query_start": self.query_start,
            "num_sequences": self.slots.numel(),
        }


def causal_conv(
    x: torch.Tensor,
    rows: StateRows,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    silu: bool = False,
) -> KernelCall:
    """Shape: x [tokens, channels], rows x.stride(0) apart; weight [taps, channels]; out [tokens,
    channels].
    """
    return KernelCall(
        builds.causal_conv(weight.shape[0], bias is not None, silu),
        {
            **rows.values(),
            "x": x,
            "weight": weight,
            "bias": bias,
            "out": out,
            "x_stride": x.stride(0),
            "channels": x.shape[1],
        },
    )


@dataclass(frozen=True)
class DeltaInputs:
    """Shape: q, k [tokens, key_heads, key_dim]; v [tokens, heads, value_dim]; decay, beta [tokens,
    heads].
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor

    def values(self) -> dict[str, Value]:
        """The arguments of both kernels."""
        return {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "decay": self.decay,
            "beta": self.beta,
            "key_heads": self.k.shape[1],
            "heads": self.v.shape[1],
            "key_dim": self.k.shape[2],
            "value_dim": self.v.shape[2],
        }


def delta_rule(inputs: DeltaInputs, rows: StateRows, out: torch.Tensor) -> KernelCall:
    """Token after token: decoding and short runs. Shape: out as v."""
    build = builds.delta_rule(inputs.k.shape[2])
    return KernelCall(build, {**rows.values(), **inputs.values(), "out": out})


def delta_chunk(inputs: DeltaInputs, rows: StateRows, out: torch.Tensor) -> KernelCall:
    """Chunk after chunk: long prompts. Shape: out as v."""
    values = {**rows.values(), **inputs.values(), "context_len": rows.context_len, "out": out}
    return KernelCall(builds.delta_chunk(inputs.k.shape[2]), values)


def mamba2_scan(
    x: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    decay: torch.Tensor,
    rows: StateRows,
    out: torch.Tensor,
) -> KernelCall:
    """Shape: x, out [tokens, heads, head_dim]; b, c [tokens, groups, state_dim]; decay [tokens,
    heads].
    """
    values: dict[str, Value] = {
        **rows.values(),
        "x": x,
        "b": b,
        "c": c,
        "decay": decay,
        "out": out,
        "groups": b.shape[1],
        "heads": x.shape[1],
        "head_dim": x.shape[2],
        "state_dim": b.shape[2],
    }
    return KernelCall(builds.mamba2_scan(b.shape[2]), values)
