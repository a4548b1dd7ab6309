"""Paged attention against the reference, on every target."""

from __future__ import annotations

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import HeadLayout, NativeKernels
from ftengine.kernels.reference.attention import attention

from .operand_makers import make_paged
from .steady import check_steady_attention

LAYOUTS = (
    HeadLayout(9, 3, 64),
    HeadLayout(4, 4, 16),
    HeadLayout(8, 2, 128),
    HeadLayout(4, 1, 12),
    HeadLayout(6, 2, 80),
    HeadLayout(40, 1, 16),
)
SEQUENCES = [(1, 400), (20, 33), (300, 300), (7, 10), (1, 1)]


def run(kernel, qkv, heads, paged, window, sinks):  # type: ignore[no-untyped-def]
    return kernel(
        qkv, heads, paged.keys, paged.values, paged.query_start, paged.context_len,
        paged.page_table, heads.head_dim**-0.5, window=window, sinks=sinks,
    )  # fmt: skip


@pytest.mark.parametrize("heads", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [0, 40])
def test_attention_equals_the_reference(
    native: NativeKernels, heads: HeadLayout, dtype: torch.dtype, window: int
) -> None:
    paged = make_paged(heads, SEQUENCES, dtype)
    qkv = torch.randn(int(paged.query_start[-1]), heads.qkv_cols)
    sinks = torch.randn(heads.heads) if window else None
    expected = run(attention, qkv, heads, paged, window, sinks)
    got = run(native.attention, qkv, heads, paged, window, sinks)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", LAYOUTS[:3], ids=str)
@pytest.mark.parametrize("window", [0, 40, 300])
def test_a_query_is_bit_identical_in_any_chunk_batch_and_thread_count(
    native: NativeKernels, heads: HeadLayout, window: int
) -> None:
    check_steady_attention(native, heads, window, torch.float32)


def test_large_scores_do_not_overflow(native: NativeKernels) -> None:
    heads = HeadLayout(2, 1, 32)
    paged = make_paged(heads, [(4, 600)])
    qkv = 300 * torch.randn(4, heads.qkv_cols)
    got = run(native.attention, qkv, heads, paged, 0, None)
    torch.testing.assert_close(
        got, run(attention, qkv, heads, paged, 0, None), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_not_a_number_stays_so(native: NativeKernels, dtype: torch.dtype) -> None:
    heads = HeadLayout(2, 1, 32)
    paged = make_paged(heads, [(1, 40), (1, 300)], dtype)
    qkv = torch.randn(2, heads.qkv_cols)
    qkv[1, :32] = float("nan")
    got = run(native.attention, qkv, heads, paged, 0, None)
    assert got[1, :32].isnan().all()
    assert got[0].isfinite().all()
    assert got[1, 32:].isfinite().all()


def test_pages_out_of_range_are_errors(native: NativeKernels) -> None:
    heads = HeadLayout(2, 1, 16)
    paged = make_paged(heads, [(2, 40)])
    qkv = torch.randn(2, heads.qkv_cols)
    for page in (-1, paged.keys.shape[0]):
        paged.page_table[0, 1] = page
        with pytest.raises(EngineError, match="page or row is out of range"):
            run(native.attention, qkv, heads, paged, 0, None)
    paged.page_table[0, 1] = 0
    paged.context_len[0] = 49
    with pytest.raises(EngineError, match="out of range"):
        run(native.attention, qkv, heads, paged, 0, None)
    paged.context_len[0] = 1
    with pytest.raises(EngineError, match="a shape does not fit"):
        run(native.attention, qkv, heads, paged, 0, None)
