"""The target whose products round activations: near as promised, and as steady as the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ftengine.kernels.dispatch import choose_kernels
from ftengine.kernels.native import HeadLayout, NativeKernels
from ftengine.kernels.reference.attention import attention
from ftengine.kernels.reference.expert_ffn import expert_ffn
from ftengine.kernels.reference.linear import linear

from .operand_makers import FORMATS, make_bank, make_paged, make_weight, route
from .steady import check_steady, check_steady_attention
from .test_attention import LAYOUTS, SEQUENCES, run
from .test_linear import BATCHES, shapes_of

TARGET = "avx512bf16"
PAIRS = ("bf16", "fp8_tensor", "fp8_block", "fp8_block_e8m0")
"""Formats whose activations become bfloat16; those of integer codes become integers, of 15 bits, of
13 in K-quants."""


@pytest.fixture
def native() -> Iterator[NativeKernels]:
    kernels = NativeKernels.load(num_threads=2)
    if TARGET not in kernels.info().targets:
        pytest.skip(f"{TARGET} is not usable here")
    kernels.set_target(TARGET)
    torch.manual_seed(11)
    yield kernels
    kernels.set_threads(2)
    kernels.set_target("scalar")


def error(got: torch.Tensor, x: torch.Tensor, weight_sizes: torch.Tensor) -> float:
    """Largest error as a part of sum |x| |w|."""
    return float((got / (x.abs() @ weight_sizes.T + 1e-6)).abs().max())


@pytest.mark.parametrize("fmt", FORMATS)
def test_products_are_within_the_rounding_of_activations(native: NativeKernels, fmt: str) -> None:
    limit = 2.0**-8 if fmt in PAIRS else 2.0**-14
    for rows, cols in shapes_of(fmt):
        weight, x = make_weight(fmt, rows, cols), torch.randn(max(BATCHES), cols)
        sizes = linear(torch.eye(cols), weight).T.abs()
        expected = linear(x, weight)
        for tokens in BATCHES:
            got = native.linear(x[:tokens], weight)
            assert error(got - expected[:tokens], x[:tokens], sizes) < limit


@pytest.mark.parametrize("fmt", PAIRS)
def test_what_is_bfloat16_already_is_not_rounded(native: NativeKernels, fmt: str) -> None:
    for rows, cols in shapes_of(fmt):
        weight, x = make_weight(fmt, rows, cols), torch.randn(9, cols).bfloat16().float()
        torch.testing.assert_close(
            native.linear(x, weight), linear(x, weight), rtol=2e-5, atol=2e-5
        )


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_token_is_bit_identical_in_any_batch_and_thread_count(
    native: NativeKernels, fmt: str
) -> None:
    check_steady(native, fmt, rows=500)


@pytest.mark.parametrize("fmt", FORMATS)
def test_experts_are_near_the_reference(native: NativeKernels, fmt: str) -> None:
    hidden, inter = (256, 256) if fmt.endswith("_k") else (96, 64)
    if fmt == "bf16":
        inter = 72  # ends inside a chunk
    bank, x = make_bank(fmt, fmt, 5, hidden, inter), torch.randn(11, hidden)
    ids, weights = route(11, 3, 5)
    expected = expert_ffn(x, ids, weights, bank)
    got = native.expert_ffn(x, ids, weights, bank)
    limit = 1e-2 if fmt in PAIRS else 8e-4 if fmt.endswith("_k") else 2e-4
    assert float((got - expected).norm() / expected.norm()) < limit


def test_many_and_few_pairs_are_summed_alike(native: NativeKernels) -> None:
    bank = make_bank("q8_0", "q8_0", 4, 1024, 32)
    ids, weights = route(300, 4, 4)  # 4.7 MiB of results: over what is kept whole
    x = torch.randn(300, 1024)
    many = native.expert_ffn(x, ids, weights, bank)
    few = native.expert_ffn(x[:5], ids[:5].contiguous(), weights[:5].contiguous(), bank)
    assert torch.equal(many[:5], few)


@pytest.mark.parametrize("fmt", ["q4_k", "q5_k", "q6_k", "mxfp4"])
def test_experts_with_many_and_with_few_tokens_are_bit_identical(
    native: NativeKernels, fmt: str
) -> None:
    bank, x = make_bank(fmt, fmt, 4, 512, 256), torch.randn(90, 512)
    ids, weights = route(90, 2, 4)  # 45 an expert, 1 an expert
    many = native.expert_ffn(x, ids, weights, bank)
    few = native.expert_ffn(x[:2], ids[:2].contiguous(), weights[:2].contiguous(), bank)
    assert torch.equal(many[:2], few)


@pytest.mark.parametrize("tokens", [3, 9])
@pytest.mark.parametrize("fmt", FORMATS)
def test_what_is_not_finite_is_not_hidden(native: NativeKernels, fmt: str, tokens: int) -> None:
    cols = 256 if fmt.endswith("_k") else 96
    weight, x = make_weight(fmt, 40, cols), torch.randn(tokens, cols)
    x[1, 50] = float("nan")
    got = native.linear(x, weight)
    assert bool(got[1].isnan().all())
    assert bool(got[0].isfinite().all())
    x[1, 50] = float("inf")
    assert not bool(native.linear(x, weight)[1].isfinite().any())
    x[1] = 0
    assert bool((native.linear(x, weight)[1] == 0).all())


def test_it_is_taken_only_where_exactness_is_not_asked_for(native: NativeKernels) -> None:
    assert choose_kernels("native", None, 2, exact=False).described["target"] == TARGET
    assert choose_kernels("native", None, 2, exact=True).described["target"] != TARGET
    forced = choose_kernels("native", None, 2, cpu_target="avx2", exact=False)
    assert forced.described["target"] == "avx2"


@pytest.mark.parametrize("heads", LAYOUTS, ids=str)
@pytest.mark.parametrize("window", [0, 40])
def test_attention_over_bfloat16_is_within_its_rounding(
    native: NativeKernels, heads: HeadLayout, window: int
) -> None:
    paged = make_paged(heads, SEQUENCES, torch.bfloat16)
    qkv = torch.randn(int(paged.query_start[-1]), heads.qkv_cols)
    sinks = torch.randn(heads.heads) if window else None
    expected = run(attention, qkv, heads, paged, window, sinks)
    got = run(native.attention, qkv, heads, paged, window, sinks)
    assert float((got - expected).norm() / expected.norm()) < 4e-3
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("window", [0, 40, 300])
def test_a_query_over_bfloat16_is_bit_identical_in_any_chunk(
    native: NativeKernels, window: int
) -> None:
    for heads in (HeadLayout(8, 2, 128), HeadLayout(6, 1, 32), HeadLayout(12, 1, 64)):
        check_steady_attention(native, heads, window, torch.bfloat16)
