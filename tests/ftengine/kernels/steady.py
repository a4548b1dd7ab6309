"""A token's result is the same bits in any batch and with any number of threads."""

from __future__ import annotations

import torch

from ftengine.kernels.native import HeadLayout, NativeKernels

from .operand_makers import make_bank, make_paged, make_weight, route
from .test_linear import BATCHES

CHUNKS = ((0, 1), (15, 16), (17, 63), (255, 256), (256, 257), (250, 520), (699, 700))


def check_steady(native: NativeKernels, fmt: str, rows: int) -> None:
    """Products and routed experts, whole against in parts. rows: of the product's weight."""
    hidden, inter = (256, 256) if fmt.endswith("_k") else (96, 64)
    weight, bank = make_weight(fmt, rows, 768), make_bank(fmt, fmt, 6, hidden, inter)
    x, few = torch.randn(66, 768), torch.randn(9, hidden)
    ids, weights = route(9, 2, 6)
    whole, routed = native.linear(x, weight), native.expert_ffn(few, ids, weights, bank)
    for tokens in BATCHES:
        assert torch.equal(native.linear(x[-tokens:], weight), whole[-tokens:])
    for token in range(9):
        one = slice(token, token + 1)
        alone = native.expert_ffn(few[one], ids[one], weights[one], bank)
        assert torch.equal(alone, routed[one])
    native.set_threads(3)
    assert torch.equal(native.linear(x, weight), whole)
    assert torch.equal(native.expert_ffn(few, ids, weights, bank), routed)


def check_steady_attention(
    native: NativeKernels, heads: HeadLayout, window: int, dtype: torch.dtype
) -> None:
    """Queries of one sequence, whole and beside another one against in parts."""
    paged = make_paged(heads, [(700, 700), (2, 30)], dtype)
    qkv, sinks, scale = torch.randn(702, heads.qkv_cols), torch.randn(heads.heads), 0.1

    def attend(rows: torch.Tensor, start: list[int], context: list[int]) -> torch.Tensor:
        return native.attention(
            rows, heads, paged.keys, paged.values, torch.tensor(start, dtype=torch.int32),
            torch.tensor(context, dtype=torch.int32), paged.page_table[: len(context)], scale,
            window=window, sinks=sinks,
        )  # fmt: skip

    whole = attend(qkv, [0, 700, 702], [700, 30])
    assert bool(whole.isfinite().all())
    for threads in (2, 1, 3):
        native.set_threads(threads)
        for first, last in CHUNKS:
            part = attend(qkv[first:last], [0, last - first], [last])
            assert torch.equal(part, whole[first:last]), (threads, first, last)
