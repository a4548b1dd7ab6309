"""Native mixers with a state against the reference, on every target; and their promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.reference.recurrent import causal_conv
from ftengine.kernels.reference.states import ReferenceStates
from ftengine.kernels.state_operands import DeltaWeights, SpanIndex, StateRows

TARGETS = ("scalar", "avx2", "avx512", "avx512bf16")
SHAPES = ((1, 1, 8, 5), (2, 4, 32, 64), (2, 6, 24, 83), (4, 4, 128, 128))
"""key_heads, value_heads, key_dim, value_dim: one and four registers of columns, and tails."""
TOKENS = 11
SLOTS = 4


@pytest.fixture(params=TARGETS)
def native(request: pytest.FixtureRequest) -> NativeKernels:
    kernels = NativeKernels.load(num_threads=2)
    if request.param not in kernels.info().targets:
        pytest.skip(f"{request.param} is not usable here")
    kernels.set_target(request.param)
    torch.manual_seed(5)
    return kernels


def spans_of(*spans: tuple[int, int, int]) -> SpanIndex:
    """(end, slot, keep) of each span."""
    ends, slots, keeps = zip(*spans, strict=True)
    return SpanIndex(
        torch.tensor([0, *ends], dtype=torch.int32),
        torch.tensor(slots, dtype=torch.int64),
        torch.tensor(keeps, dtype=torch.int64),
        torch.zeros(len(ends), dtype=torch.int32),
        len(ends),
    )


class Pool:
    """Slots with the parts of one layer side by side, as cache/state_pool.py has them."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        sizes = [-(-torch.Size(shape).numel() // 16) * 16 for shape in shapes]
        self.rows = torch.randn(SLOTS, sum(sizes)) * 0.1
        self._places = [(sum(sizes[:i]), torch.Size(shape)) for i, shape in enumerate(shapes)]

    def parts(self, slot: int) -> tuple[torch.Tensor, ...]:
        row = self.rows[slot]
        return tuple(row[at : at + s.numel()].view(s) for at, s in self._places)

    def layer_rows(self) -> StateRows:
        return StateRows(self.parts(0), self.rows.shape[1], SLOTS)

    def keep(self, slot: int, checkpoint: int) -> None:
        for mine, kept in zip(self.parts(slot), self.parts(checkpoint), strict=True):
            kept.copy_(mine)

    def clone(self) -> Pool:
        other = Pool.__new__(Pool)
        other.rows, other._places = self.rows.clone(), self._places
        return other


def delta_weights(shape: tuple[int, int, int, int], taps: int) -> DeltaWeights:
    key_heads, value_heads, key_dim, value_dim = shape
    mixed = 2 * key_heads * key_dim + value_heads * value_dim
    return DeltaWeights(
        *shape,
        torch.randn(taps, mixed),
        torch.rand(value_heads).double(),
        torch.randn(value_heads).double(),
        torch.full((key_dim,), 1.0 / key_dim),
        torch.full((key_dim,), key_dim**-0.5),
        torch.randn(value_dim),
        1e-6,
        1e-6,
    )


def delta_pool(weights: DeltaWeights) -> Pool:
    state = (weights.value_heads, weights.key_dim, weights.value_dim)
    return Pool((weights.conv.shape[0] - 1, weights.mixed_width), state)


def delta_reference(
    wide: torch.Tensor, weights: DeltaWeights, pool: Pool, spans: SpanIndex
) -> torch.Tensor:
    out = torch.empty(wide.shape[0], weights.value_width)
    ReferenceStates().gated_delta(wide, weights, pool.layer_rows(), spans, out)
    return out


def run_delta(
    native: NativeKernels, wide: torch.Tensor, weights: DeltaWeights, pool: Pool, spans: SpanIndex
) -> torch.Tensor:
    out = torch.full((wide.shape[0], weights.value_heads * weights.value_dim), 9.0)
    native.state_ops.gated_delta(wide, weights, pool.layer_rows(), spans, out)
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_gated_delta_is_what_the_layer_computes(
    native: NativeKernels, shape: tuple[int, int, int, int]
) -> None:
    weights = delta_weights(shape, taps=4)
    pool = delta_pool(weights)
    other = pool.clone()
    wide = torch.randn(TOKENS, weights.row_width)
    spans = spans_of((3, 2, 3), (4, 2, -1), (TOKENS, 0, -1))  # one kept in the middle
    out = run_delta(native, wide, weights, pool, spans)
    torch.testing.assert_close(
        out, delta_reference(wide, weights, other, spans), rtol=2e-4, atol=2e-4
    )
    torch.testing.assert_close(pool.rows, other.rows, rtol=2e-4, atol=2e-4)


def short_conv(
    native: NativeKernels, wide: torch.Tensor, conv: torch.Tensor, pool: Pool, spans: SpanIndex
) -> torch.Tensor:
    out = torch.full((wide.shape[0], conv.shape[1]), 9.0)
    bias = torch.arange(conv.shape[1]) * 0.01
    native.state_ops.short_conv(wide, conv, bias, pool.layer_rows(), spans, out)
    return out


@pytest.mark.parametrize(("width", "taps"), [(5, 2), (64, 3), (301, 4)])
def test_short_conv_is_what_the_layer_computes(
    native: NativeKernels, width: int, taps: int
) -> None:
    conv, pool = torch.randn(taps, width), Pool((taps - 1, width))
    other = pool.clone()
    wide = torch.randn(TOKENS, 3 * width)
    spans = spans_of((1, 1, -1), (TOKENS, 2, 3))
    out = short_conv(native, wide, conv, pool, spans)
    b, c, x = wide.chunk(3, dim=1)
    for i, slot in enumerate((1, 2)):
        rows = slice(int(spans.start[i]), int(spans.start[i + 1]))
        (state,) = other.parts(slot)
        seen = causal_conv((b * x)[rows], state, conv, torch.arange(width) * 0.01)
        torch.testing.assert_close(out[rows], c[rows] * seen, rtol=1e-5, atol=1e-5)
    other.keep(2, 3)
    torch.testing.assert_close(pool.rows, other.rows)


def test_cuts_and_company_do_not_change_a_bit(native: NativeKernels) -> None:
    weights = delta_weights((2, 4, 32, 83), taps=4)
    conv = torch.randn(4, 83)
    calls: tuple[tuple[Callable[..., torch.Tensor], Pool, torch.Tensor], ...] = (
        (
            lambda x, pool, spans: run_delta(native, x, weights, pool, spans),
            delta_pool(weights),
            torch.randn(TOKENS, weights.row_width),
        ),
        (
            lambda x, pool, spans: short_conv(native, x, conv, pool, spans),
            Pool((3, 83)),
            torch.randn(TOKENS, 249),
        ),
    )
    for call, pool, wide in calls:
        cut = pool.clone()
        whole = call(wide, pool, spans_of((TOKENS, 1, -1)))
        parts = [call(wide[:4], cut, spans_of((4, 1, -1)))]
        both = torch.cat([wide[:2], wide[4:]])  # beside another sequence
        parts.append(call(both, cut, spans_of((2, 2, -1), (TOKENS - 2, 1, -1)))[2:])
        assert torch.equal(torch.cat(parts), whole)
        assert torch.equal(cut.rows[1], pool.rows[1])


@pytest.mark.parametrize("spans", [(TOKENS, SLOTS, -1), (TOKENS, 0, SLOTS), (TOKENS, -1, -1)])
def test_a_slot_out_of_range_is_refused(native: NativeKernels, spans: tuple[int, int, int]) -> None:
    conv, pool = torch.randn(3, 8), Pool((2, 8))
    with pytest.raises(EngineError, match="out of range"):
        short_conv(native, torch.randn(TOKENS, 24), conv, pool, spans_of(spans))
