"""Activations of 8 bits: the same option on every target, and only where codes are integers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ftengine.kernels.native import NativeKernels
from ftengine.kernels.reference.expert_ffn import expert_ffn
from ftengine.kernels.reference.linear import linear

from .operand_makers import FORMATS, make_bank, make_weight, route
from .steady import check_steady
from .test_linear import BATCHES, shapes_of

TARGETS = ("scalar", "avx2", "avx512", "avx512bf16")
PLAIN = ("f32", "f16", "bf16", "fp8_tensor", "fp8_block", "fp8_block_e8m0")
INTEGERS = tuple(fmt for fmt in FORMATS if fmt not in PLAIN)


@pytest.fixture(params=TARGETS)
def native(request: pytest.FixtureRequest) -> Iterator[NativeKernels]:
    kernels = NativeKernels.load(num_threads=2)
    if request.param not in kernels.info().targets:
        pytest.skip(f"{request.param} is not usable here")
    kernels.set_target(request.param)
    kernels.set_activations("int8")
    torch.manual_seed(11)
    yield kernels
    kernels.set_activations("auto")
    kernels.set_threads(2)
    kernels.set_target("scalar")


def rounded(x: torch.Tensor, fmt: str) -> torch.Tensor:
    """In units of the largest of 32, of 256 for K-quants, / 127."""
    size = 256 if fmt.endswith("_k") else 32
    parts = []
    for part in x.split(size, dim=1):
        largest = part.abs().amax(dim=1, keepdim=True)
        parts.append((part * (127 / largest)).round() * (largest / 127))
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("fmt", INTEGERS)
def test_every_target_multiplies_the_same_rounded_activations(
    native: NativeKernels, fmt: str
) -> None:
    assert native.activation_bits(fmt) == 8
    for rows, cols in shapes_of(fmt):
        weight, x = make_weight(fmt, rows, cols), torch.randn(max(BATCHES), cols)
        expected = linear(rounded(x, fmt), weight)
        largest = float(expected.abs().max())
        for tokens in BATCHES:
            got = native.linear(x[:tokens], weight)
            torch.testing.assert_close(got, expected[:tokens], rtol=2e-5, atol=1e-4 * largest)
        assert float((expected - linear(x, weight)).abs().max()) > 1e-3 * largest  # it is coarse


@pytest.mark.parametrize("fmt", PLAIN)
def test_other_formats_are_computed_as_without_it(native: NativeKernels, fmt: str) -> None:
    weight, x = make_weight(fmt, 40, 96), torch.randn(5, 96)
    got = native.linear(x, weight)
    assert native.activation_bits(fmt) != 8
    native.set_activations("auto")
    assert torch.equal(native.linear(x, weight), got)


@pytest.mark.parametrize("fmt", INTEGERS)
def test_a_token_is_bit_identical_in_any_batch_and_thread_count(
    native: NativeKernels, fmt: str
) -> None:
    check_steady(native, fmt, rows=100)


@pytest.mark.parametrize("fmt", INTEGERS)
def test_experts_are_near_the_reference(native: NativeKernels, fmt: str) -> None:
    hidden, inter = (256, 256) if fmt.endswith("_k") else (96, 64)
    bank, x = make_bank(fmt, fmt, 5, hidden, inter), torch.randn(11, hidden)
    ids, weights = route(11, 3, 5)
    expected = expert_ffn(x, ids, weights, bank)
    got = native.expert_ffn(x, ids, weights, bank)
    error = float((got - expected).norm() / expected.norm())
    assert 1e-4 < error < 3e-2


@pytest.mark.parametrize("fmt", INTEGERS)
def test_what_is_not_finite_is_not_hidden(native: NativeKernels, fmt: str) -> None:
    cols = 256 if fmt.endswith("_k") else 96
    weight, x = make_weight(fmt, 40, cols), torch.randn(3, cols)
    x[1, 50] = float("nan")
    got = native.linear(x, weight)
    assert bool(got[1].isnan().all())
    assert bool(got[0].isfinite().all())
    x[1, 50] = float("inf")
    assert not bool(native.linear(x, weight)[1].isfinite().any())
    x[1] = 0
    assert bool((native.linear(x, weight)[1] == 0).all())


def test_it_stays_when_the_target_or_the_threads_change(native: NativeKernels) -> None:
    native.set_target("scalar")
    native.set_threads(1)
    assert native.info().activations == "int8"
    assert native.activation_bits("q8_0") == 8
    native.set_activations("auto")
    assert native.activation_bits("q8_0") == 32
