"""Reference of mixers with a state: all between their two projections, span after span."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ftengine.kernels.reference.norm import rms_norm
from ftengine.kernels.reference.recurrent import causal_conv, delta_rule, mamba2_scan
from ftengine.kernels.state_operands import DeltaWeights, Mamba2Weights, SpanIndex, StateRows


class ReferenceStates:
    """StateOps in torch."""

    def gated_delta(
        self,
        wide: torch.Tensor,
        weights: DeltaWeights,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """Convolution, delta rule over unit q and k, norm of every head, times silu(z)."""
        heads = weights.value_heads
        sizes = [weights.mixed_width, weights.value_width, heads, heads]
        mixed, z, b, a = wide.split_with_sizes(sizes, dim=1)
        x = F.silu(convolved(mixed, weights.conv, None, states.only(0), spans))
        found = delta_spans(x, b, a, weights, states.only(1), spans)
        normed = rms_norm(found, weights.norm_weight, weights.norm_eps)
        torch.mul(normed.flatten(1), F.silu(z), out=out)

    def mamba2(
        self,
        wide: torch.Tensor,
        weights: Mamba2Weights,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """Convolution, S <- decay S + dt x B^T, (S C + skip x) * silu(z)."""
        sizes = [weights.width, weights.mixed_width, weights.heads]
        z, mixed, dt = wide.split_with_sizes(sizes, dim=1)
        x = F.silu(convolved(mixed, weights.conv, weights.conv_bias, states.only(0), spans))
        found = scan_spans(x, dt, weights, states.only(1), spans)
        torch.mul(found.flatten(1), F.silu(z), out=out)

    def short_conv(
        self,
        wide: torch.Tensor,
        conv: torch.Tensor,
        bias: torch.Tensor | None,
        states: StateRows,
        spans: SpanIndex,
        out: torch.Tensor,
    ) -> None:
        """out = C * conv(B * x)."""
        b, c, x = wide.split_with_sizes([conv.shape[1]] * 3, dim=1)
        torch.mul(c, convolved(b * x, conv, bias, states, spans), out=out)


def convolved(
    x: torch.Tensor,
    conv: torch.Tensor,
    bias: torch.Tensor | None,
    states: StateRows,
    spans: SpanIndex,
) -> torch.Tensor:
    """The convolution of every span. Shape: x [n, channels]; states [taps - 1, channels]."""
    found = torch.empty_like(x)
    for rows, state in _each(states, spans):
        found[rows] = causal_conv(x[rows], state, conv, bias)
    return found


def delta_spans(
    mixed: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    weights: DeltaWeights,
    states: StateRows,
    spans: SpanIndex,
) -> torch.Tensor:
    """The delta rule of every span. Shape: mixed [n, q + k + v]; result [n, heads, value_dim]."""
    # few numbers: in float64, so that vector and scalar code of torch round alike
    decay = torch.exp(-weights.decay_rate * F.softplus(a.double() + weights.dt_bias)).float()
    beta = b.double().sigmoid().float()
    found = torch.empty(mixed.shape[0], weights.value_heads, weights.value_dim)
    width = weights.key_width
    for rows, state in _each(states, spans):
        q, k, v = mixed[rows].split_with_sizes([width, width, weights.value_width], dim=1)
        q, k = (part.reshape(len(part), weights.key_heads, -1) for part in (q, k))
        q = rms_norm(q, weights.q_weight, weights.qk_eps)
        k = rms_norm(k, weights.k_weight, weights.qk_eps)
        v = v.reshape(len(v), weights.value_heads, -1)
        delta_rule(q, k, v, decay[rows], beta[rows], state, found[rows])
    return found


def scan_spans(
    mixed: torch.Tensor,
    dt: torch.Tensor,
    weights: Mamba2Weights,
    states: StateRows,
    spans: SpanIndex,
) -> torch.Tensor:
    """The recurrence of every span. Shape: mixed [n, x + B + C]; result [n, heads, head_dim]."""
    # few numbers: in float64, so that vector and scalar code of torch round alike
    step = F.softplus(dt.double() + weights.dt_bias).clamp(*weights.dt_limit)
    decay = torch.exp(-weights.decay_rate * step).float()
    step = step.float()
    found = torch.empty(mixed.shape[0], weights.heads, weights.head_dim)
    inner = weights.groups * weights.state_dim
    for rows, state in _each(states, spans):
        h, b, c = mixed[rows].split_with_sizes([weights.width, inner, inner], dim=1)
        h = h.reshape(len(h), weights.heads, -1)
        b, c = (part.reshape(len(part), weights.groups, -1) for part in (b, c))
        mamba2_scan(h * step[rows].unsqueeze(-1), b, c, decay[rows], state, found[rows])
        found[rows] += h * weights.skip[:, None]
    return found


def _each(states: StateRows, spans: SpanIndex) -> Iterator[tuple[slice, torch.Tensor]]:
    """(rows, state) of every span; a copy of the state is kept once the span is done."""
    starts = spans.start[: spans.count + 1].tolist()
    slots, keeps = (item[: spans.count].tolist() for item in (spans.slot, spans.keep))
    for index, (slot, keep) in enumerate(zip(slots, keeps, strict=True)):
        (state,) = states.of_slot(slot)
        yield slice(starts[index], starts[index + 1]), state
        if keep >= 0:
            states.of_slot(keep)[0].copy_(state)
