"""A token's result is the same bits in any batch and with any number of threads."""

from __future__ import annotations

import torch

from ftengine.kernels.native import NativeKernels

from .operand_makers import make_bank, make_weight, route
from .test_linear import BATCHES


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
