"""Layers with state: the spans of several sequences at once against the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ftengine.kernels.reference.rows import TorchRows
from ftengine.kernels.reference.states import ReferenceStates, convolved, delta_spans, scan_spans
from ftengine.kernels.state_operands import DeltaWeights, Mamba2Weights, SpanIndex, StateRows
from ftengine.kernels.triton import builds, state_calls
from ftengine.kernels.triton.calls import KernelCall
from tests.ftengine.kernels.triton.interpreter import Interpreter

KEYS, HEADS, KEY_DIM, VALUE_DIM = 2, 4, 12, 20
SPANS = ((1, 2, -1), (4, 0, 3), (6, 0, -1))
"""(end, slot, keep): one token of a sequence, and five of another, its state kept after three."""


def spans_of(*spans: tuple[int, int, int], positions: tuple[int, ...] = ()) -> SpanIndex:
    ends, slots, keeps = zip(*spans, strict=True)
    return SpanIndex(
        torch.tensor([0, *ends]).int(),
        torch.tensor(slots),
        torch.tensor(keeps),
        torch.tensor(positions or (0,) * len(ends)).int(),
        len(ends),
    )


def rows_of(states: torch.Tensor) -> StateRows:
    """Shape: [slots, ...]."""
    return StateRows((states[0],), states.stride(0), states.shape[0])


def on_device(states: torch.Tensor) -> StateRows:
    """As launches see them: every slot, and the same for each part of a layer."""
    return StateRows((states, states), states.stride(0), states.shape[0])


@pytest.mark.parametrize(("taps", "bias"), [(4, True), (3, False)])
def test_convolution_and_its_state(interpreter: Interpreter, taps: int, bias: bool) -> None:
    """Wider than a block of channels; rows of the input lie apart."""
    wide, weight = torch.randn(6, 80), torch.randn(taps, 70)
    extra = torch.randn(70) if bias else None
    states, spans = torch.randn(4, taps - 1, 70), spans_of(*SPANS)
    expected_states, out = states.clone(), torch.full((6, 70), float("nan"))
    x = wide[:, :70]
    call = state_calls.causal_conv(x, on_device(states), spans, weight, out, extra, silu=True)
    interpreter.run(call)
    expected = convolved(x, weight, extra, rows_of(expected_states), spans)
    assert torch.allclose(out, torch.nn.functional.silu(expected), atol=1e-5)
    assert torch.equal(states, expected_states)


def test_gated_convolution(interpreter: Interpreter) -> None:
    wide, weight, bias = torch.randn(6, 100), torch.randn(3, 30), torch.randn(30)
    states, spans = torch.randn(4, 2, 30), spans_of(*SPANS)
    expected_states, out = states.clone(), torch.full((6, 40), float("nan"))
    x, target = wide[:, :90], out[:, :30]
    call = state_calls.causal_conv(x, on_device(states), spans, weight, target, bias, gated=True)
    interpreter.run(call)
    expected = torch.empty(6, 30)
    ReferenceStates().short_conv(x, weight, bias, rows_of(expected_states), spans, expected)
    assert torch.allclose(target, expected, atol=1e-5)
    assert torch.allclose(states, expected_states)
    assert out[:, 30:].isnan().all()


def delta_weights() -> DeltaWeights:
    width = 2 * KEYS * KEY_DIM + HEADS * VALUE_DIM
    return DeltaWeights(
        KEYS,
        HEADS,
        KEY_DIM,
        VALUE_DIM,
        torch.randn(4, width),
        torch.rand(HEADS).double(),
        torch.randn(HEADS).double(),
        torch.full((KEY_DIM,), 1.0 / KEY_DIM),
        torch.full((KEY_DIM,), KEY_DIM**-0.5),
        torch.randn(VALUE_DIM),
        1e-6,
        1e-6,
    )


Rule = Callable[..., KernelCall]


def run_delta(
    interpreter: Interpreter,
    rule: Rule,
    wide: torch.Tensor,
    weights: DeltaWeights,
    states: torch.Tensor,
    spans: SpanIndex,
) -> torch.Tensor:
    """The rule alone: of wide's first columns, as if the convolution had been there."""
    mixed = wide[:, : weights.mixed_width].contiguous()
    out = torch.full((wide.shape[0], weights.value_width), float("nan"))
    interpreter.run(rule(mixed, wide, weights, on_device(states), spans, out))
    return out


def reference_delta(
    wide: torch.Tensor, weights: DeltaWeights, states: torch.Tensor, spans: SpanIndex
) -> torch.Tensor:
    sizes = [weights.mixed_width, weights.value_width, HEADS, HEADS]
    mixed, _, b, a = wide.split_with_sizes(sizes, dim=1)
    return delta_spans(mixed, b, a, weights, rows_of(states), spans).flatten(1)


@pytest.mark.parametrize("rule", [state_calls.delta_rule, state_calls.delta_chunk])
def test_delta_rule_of_spans(interpreter: Interpreter, rule: Rule) -> None:
    weights, states = delta_weights(), torch.randn(4, HEADS, KEY_DIM, VALUE_DIM)
    wide, expected_states = torch.randn(6, weights.row_width), states.clone()
    spans = spans_of(*SPANS, positions=(9, 14, 17))
    out = run_delta(interpreter, rule, wide, weights, states, spans)
    expected = reference_delta(wide, weights, expected_states, spans)
    assert torch.allclose(out, expected, atol=2e-5)
    assert torch.allclose(states, expected_states, atol=2e-5)
    assert not torch.equal(states[3], states[0])


def test_delta_rule_by_chunks_from_any_start(interpreter: Interpreter) -> None:
    tokens, before = builds.CHUNK + 5, 7
    weights, states = delta_weights(), torch.randn(2, HEADS, KEY_DIM, VALUE_DIM)
    wide, expected_states = torch.randn(tokens, weights.row_width), states.clone()
    wide[3, -HEADS:] = 1e4  # everything before is forgotten
    spans = spans_of((tokens, 1, -1), positions=(before,))
    out = run_delta(interpreter, state_calls.delta_chunk, wide, weights, states, spans)
    expected = reference_delta(wide, weights, expected_states, spans)
    assert torch.allclose(out, expected, atol=2e-5)
    assert torch.allclose(states, expected_states, atol=2e-5)


@pytest.mark.parametrize(
    ("rule", "cut"), [(state_calls.delta_rule, 5), (state_calls.delta_chunk, builds.CHUNK)]
)
def test_such_cuts_change_no_bit(interpreter: Interpreter, rule: Rule, cut: int) -> None:
    tokens = cut + 4
    weights, states = delta_weights(), torch.randn(2, HEADS, KEY_DIM, VALUE_DIM)
    wide, apart, together = torch.randn(tokens, weights.row_width), states.clone(), states.clone()
    whole = run_delta(interpreter, rule, wide, weights, states, spans_of((tokens, 1, -1)))
    first = run_delta(interpreter, rule, wide[:cut], weights, apart, spans_of((cut, 1, -1)))
    rest = spans_of((tokens - cut, 1, -1), positions=(cut,))
    second = run_delta(interpreter, rule, wide[cut:], weights, apart, rest)
    both = spans_of((cut, 1, 0), (tokens, 1, -1), positions=(0, cut))
    assert torch.equal(run_delta(interpreter, rule, wide, weights, together, both), whole)
    assert torch.equal(torch.cat([first, second]), whole)
    assert torch.equal(states[1], apart[1])
    assert torch.equal(states[1], together[1])


def test_norm_of_heads_and_gate(interpreter: Interpreter) -> None:
    weights = delta_weights()
    wide, found = torch.randn(3, weights.row_width), torch.randn(3, weights.value_width)
    out = torch.full((3, weights.value_width + 4), float("nan"))
    target = out[:, : weights.value_width]
    interpreter.run(state_calls.gated_norm(found, wide, weights, target))
    z = wide[:, weights.mixed_width : weights.mixed_width + weights.value_width]
    rows, weight = TorchRows(), weights.norm_weight.repeat(HEADS)
    normed = rows.group_norm(found, weight, HEADS, weights.norm_eps, torch.empty_like(found))
    assert torch.allclose(target, rows.gate_rows(normed, z, normed, "silu"), atol=1e-5)
    assert out[:, weights.value_width :].isnan().all()


def test_mamba2(interpreter: Interpreter) -> None:
    """Some steps are longer than the limit."""
    heads, dim, groups, size = 4, 10, 2, 24
    inner, width = heads * dim, heads * dim + 2 * groups * size
    weights = Mamba2Weights(
        heads,
        dim,
        groups,
        size,
        (0.01, 0.5),
        torch.zeros(4, width),
        None,
        torch.rand(heads).double(),
        torch.randn(heads).double(),
        torch.randn(heads),
    )
    wide, states = torch.randn(6, inner + width + heads), torch.randn(4, heads, dim, size)
    expected_states, spans = states.clone(), spans_of(*SPANS)
    z, mixed, dt = wide.split_with_sizes([inner, width, heads], dim=1)
    mixed = mixed.contiguous()
    out = torch.full((6, inner + 8), float("nan"))
    target = out[:, :inner]
    call = state_calls.mamba2_scan(mixed, wide, weights, on_device(states), spans, target)
    interpreter.run(call)
    expected = scan_spans(mixed, dt, weights, rows_of(expected_states), spans).flatten(1)
    assert torch.allclose(target, expected * torch.nn.functional.silu(z), atol=1e-5)
    assert torch.allclose(states, expected_states, atol=1e-5)
    assert out[:, inner:].isnan().all()
