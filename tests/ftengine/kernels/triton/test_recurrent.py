"""Layers with state: several sequences at once against the reference, one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ftengine.kernels.reference import recurrent
from ftengine.kernels.triton import builds, state_calls
from ftengine.kernels.triton.state_calls import DeltaInputs, StateRows
from tests.ftengine.kernels.triton.interpreter import Interpreter

SPANS = ((0, 1), (1, 6))
SLOTS = (2, 0)


def rows_of(states: torch.Tensor, context: tuple[int, ...] = (1, 5)) -> StateRows:
    """Shape: states [slots, ...]."""
    return StateRows(
        states,
        states.stride(0),
        torch.tensor(SLOTS),
        torch.tensor([0, 1, 6]).int(),
        torch.tensor(context).int(),
    )


@pytest.mark.parametrize(("taps", "bias", "silu"), [(4, True, True), (3, False, False)])
def test_convolution_and_its_state(
    interpreter: Interpreter, taps: int, bias: bool, silu: bool
) -> None:
    wide, weight = torch.randn(6, 80), torch.randn(taps, 70)
    extra = torch.randn(70) if bias else None
    states = torch.randn(3, taps - 1, 70)
    expected_states, out = states.clone(), torch.full((6, 70), float("nan"))
    x = wide[:, :70]
    interpreter.run(state_calls.causal_conv(x, rows_of(states), weight, out, extra, silu))
    for (first, last), slot in zip(SPANS, SLOTS, strict=True):
        found = recurrent.causal_conv(x[first:last], expected_states[slot], weight, extra)
        expected = torch.nn.functional.silu(found) if silu else found
        assert torch.allclose(out[first:last], expected, atol=1e-5)
    assert torch.equal(states, expected_states)


def delta_inputs(tokens: int) -> DeltaInputs:
    q, k = (torch.nn.functional.normalize(torch.randn(tokens, 2, 12), dim=-1) for _ in range(2))
    v = torch.randn(tokens, 4, 20)
    return DeltaInputs(q, k, v, torch.rand(tokens, 4), torch.rand(tokens, 4))


def reference_delta(inputs: DeltaInputs, rows: slice, state: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(inputs.v)[rows]
    parts = (inputs.q, inputs.k, inputs.v, inputs.decay, inputs.beta)
    recurrent.delta_rule(*(item[rows] for item in parts), state, out)
    return out


def test_delta_rule_step_by_step(interpreter: Interpreter) -> None:
    inputs, states = delta_inputs(6), torch.randn(3, 4, 12, 20)
    expected_states, out = states.clone(), torch.full((6, 4, 20), float("nan"))
    interpreter.run(state_calls.delta_rule(inputs, rows_of(states), out))
    for (first, last), slot in zip(SPANS, SLOTS, strict=True):
        expected = reference_delta(inputs, slice(first, last), expected_states[slot])
        assert torch.allclose(out[first:last], expected, atol=1e-5)
    assert torch.allclose(states, expected_states, atol=1e-5)


def chunk_rows(states: torch.Tensor, tokens: int, context: int) -> StateRows:
    return StateRows(
        states,
        states.stride(0),
        torch.tensor([1]),
        torch.tensor([0, tokens]).int(),
        torch.tensor([context]).int(),
    )


def test_delta_rule_by_chunks_from_any_start(interpreter: Interpreter) -> None:
    tokens, before = builds.CHUNK + 5, 7
    inputs, states = delta_inputs(tokens), torch.randn(2, 4, 12, 20)
    inputs.decay[3] = 0.0  # everything before is forgotten
    state, out = states[1].clone(), torch.full((tokens, 4, 20), float("nan"))
    rows = chunk_rows(states, tokens, before + tokens)
    interpreter.run(state_calls.delta_chunk(inputs, rows, out))
    expected = reference_delta(inputs, slice(0, tokens), state)
    assert torch.allclose(out, expected, atol=2e-5)
    assert torch.allclose(states[1], state, atol=2e-5)


def part(inputs: DeltaInputs, rows: slice) -> DeltaInputs:
    every = (inputs.q, inputs.k, inputs.v, inputs.decay, inputs.beta)
    return DeltaInputs(*(item[rows].contiguous() for item in every))


def run_step(
    interpreter: Interpreter, inputs: DeltaInputs, states: torch.Tensor, end: int
) -> torch.Tensor:
    out = torch.zeros_like(inputs.v)
    interpreter.run(state_calls.delta_rule(inputs, chunk_rows(states, out.shape[0], end), out))
    return out


def run_chunk(
    interpreter: Interpreter, inputs: DeltaInputs, states: torch.Tensor, end: int
) -> torch.Tensor:
    out = torch.zeros_like(inputs.v)
    rows = chunk_rows(states, out.shape[0], end)
    interpreter.run(state_calls.delta_chunk(inputs, rows, out))
    return out


@pytest.mark.parametrize(("run", "cut"), [(run_step, 5), (run_chunk, builds.CHUNK)])
def test_such_cuts_change_no_bit(
    interpreter: Interpreter,
    run: Callable[[Interpreter, DeltaInputs, torch.Tensor, int], torch.Tensor],
    cut: int,
) -> None:
    tokens = cut + 4
    inputs, states = delta_inputs(tokens), torch.randn(2, 4, 12, 20)
    other = states.clone()
    whole = run(interpreter, inputs, states, tokens)
    first = run(interpreter, part(inputs, slice(0, cut)), other, cut)
    second = run(interpreter, part(inputs, slice(cut, tokens)), other, tokens)
    assert torch.equal(torch.cat([first, second]), whole)
    assert torch.equal(states, other)


def test_mamba2(interpreter: Interpreter) -> None:
    x, decay = torch.randn(6, 4, 10), torch.rand(6, 4)
    b, c = torch.randn(6, 2, 24), torch.randn(6, 2, 24)
    states = torch.randn(3, 4, 10, 24)
    expected_states, out = states.clone(), torch.full((6, 4, 10), float("nan"))
    interpreter.run(state_calls.mamba2_scan(x, b, c, decay, rows_of(states), out))
    for (first, last), slot in zip(SPANS, SLOTS, strict=True):
        rows, expected = slice(first, last), torch.zeros(last - first, 4, 10)
        state = expected_states[slot]
        recurrent.mamba2_scan(x[rows], b[rows], c[rows], decay[rows], state, expected)
        assert torch.allclose(out[rows], expected, atol=1e-5)
    assert torch.allclose(states, expected_states, atol=1e-5)
