"""Recurrent references against their equations in float64, and their promise about chunks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ftengine.kernels.reference.recurrent import causal_conv, delta_rule, mamba2_scan

TOKENS = 9


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_convolution_looks_back_over_its_taps() -> None:
    x, before, weight, bias = draw(TOKENS, 6), draw(3, 6), draw(4, 6), draw(6)
    state = before.clone()
    found = causal_conv(x, state, weight, bias)
    seen = torch.cat([before, x]).double()
    for token in range(TOKENS):
        expected = (seen[token : token + 4] * weight.double()).sum(0) + bias
        assert torch.allclose(found[token].double(), expected, atol=1e-6)
    assert torch.equal(state, x[-3:])


def test_a_short_step_keeps_older_inputs_in_the_state() -> None:
    x, state = draw(1, 6), draw(3, 6)
    before = state.clone()
    causal_conv(x, state, draw(4, 6))
    assert torch.equal(state, torch.cat([before[1:], x]))


def test_delta_rule_follows_its_equation() -> None:
    q, k, v = draw(TOKENS, 2, 4), draw(TOKENS, 2, 4), draw(TOKENS, 6, 5)
    decay, beta, state = draw(TOKENS, 6).sigmoid(), draw(TOKENS, 6).sigmoid(), draw(6, 4, 5)
    wide, out = state.double(), torch.zeros(TOKENS, 6, 5)
    delta_rule(q, k, v, decay, beta, state, out)
    for token in range(TOKENS):
        for head in range(6):
            key, query = k[token, head // 3].double(), q[token, head // 3].double()
            s = decay[token, head].double() * wide[head]
            s = s + torch.outer(key, beta[token, head] * (v[token, head].double() - s.T @ key))
            wide[head] = s
            assert torch.allclose(out[token, head].double(), s.T @ query, atol=1e-4)
    assert torch.allclose(state.double(), wide, atol=1e-4)


def test_mamba2_follows_its_equation() -> None:
    x, b, c = draw(TOKENS, 4, 3), draw(TOKENS, 2, 5), draw(TOKENS, 2, 5)
    decay, state = draw(TOKENS, 4).sigmoid(), draw(4, 3, 5)
    wide, out = state.double(), torch.zeros(TOKENS, 4, 3)
    mamba2_scan(x, b, c, decay, state, out)
    for token in range(TOKENS):
        for head in range(4):
            group = head // 2
            wide[head] = decay[token, head] * wide[head] + torch.outer(
                x[token, head].double(), b[token, group].double()
            )
            expected = wide[head] @ c[token, group].double()
            assert torch.allclose(out[token, head].double(), expected, atol=1e-5)
    assert torch.allclose(state.double(), wide, atol=1e-5)


def delta(rows: slice, state: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(TOKENS, 6, 5)
    parts = (draw(TOKENS, 2, 4), draw(TOKENS, 2, 4), draw(TOKENS, 6, 5))
    gates = (draw(TOKENS, 6).sigmoid(), draw(TOKENS, 6).sigmoid())
    delta_rule(*(item[rows] for item in (*parts, *gates)), state, out[rows])
    return out[rows]


def mamba2(rows: slice, state: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(TOKENS, 6, 4)
    parts = (draw(TOKENS, 6, 4), draw(TOKENS, 2, 5), draw(TOKENS, 2, 5), draw(TOKENS, 6).sigmoid())
    mamba2_scan(*(item[rows] for item in parts), state, out[rows])
    return out[rows]


@pytest.mark.parametrize("run", [delta, mamba2])
def test_cuts_do_not_change_a_bit(run: Callable[[slice, torch.Tensor], torch.Tensor]) -> None:
    whole_state = torch.zeros(6, 4, 5)
    whole = run(slice(0, TOKENS), whole_state)
    for cut in range(1, TOKENS):
        state = torch.zeros(6, 4, 5)
        parts = [run(slice(0, cut), state), run(slice(cut, TOKENS), state)]
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(state, whole_state)
