"""Experts with biases: the native composition against the reference, whatever the width."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ExpertBank
from ftengine.kernels.reference.expert_ffn import expert_ffn
from tests.ftengine.kernels.operand_makers import make_bank

TOKENS, SLOTS = 5, 2


def biased(bank: ExpertBank, fmt: str) -> ExpertBank:
    """The same experts with random biases behind their weights."""
    size = {"f32": 4, "bf16": 2}[fmt]
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[fmt]
    counts = (2 * bank.inter, bank.hidden)
    first = bank.row_bytes
    second = first + -(-counts[0] * size // 64) * 64
    row_bytes = -(-(second + counts[1] * size) // 4096) * 4096
    data = torch.zeros(bank.num_experts * row_bytes + 64, dtype=torch.uint8)
    start = -data.data_ptr() % 64
    rows = data[start : start + bank.num_experts * row_bytes].view(bank.num_experts, row_bytes)
    rows[:, : bank.row_bytes] = bank.data
    for at, count in zip((first, second), counts, strict=True):
        values = torch.randn(bank.num_experts, count).to(dtype)
        rows[:, at : at + count * size] = values.view(torch.uint8)
    layout = replace(
        bank.layout, row_bytes=row_bytes, gate_up_bias_offset=first, down_bias_offset=second
    )
    return replace(bank, data=rows, layout=layout, fmt_bias=fmt)


@pytest.mark.parametrize(("fmt", "inter"), [("f32", 40), ("bf16", 48), ("q8_0", 64)])
def test_biases_are_added_before_the_activation_and_at_the_end(
    fmt: str, inter: int, native: NativeKernels
) -> None:
    plain = make_bank(fmt, fmt, 4, 64, inter, activation="swiglu_clamp")
    bank = biased(plain, "bf16" if fmt == "bf16" else "f32")
    x = torch.randn(TOKENS, 64)
    ids = torch.randint(0, 4, (TOKENS, SLOTS), dtype=torch.int32)
    weights = torch.rand(TOKENS, SLOTS)
    expected = expert_ffn(x, ids, weights, bank)
    found = native.expert_ffn(x, ids, weights, bank)
    assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found, native.expert_ffn(x, ids, weights, plain), atol=0.1)
    added = native.expert_ffn(x, ids, weights, bank, out=x.clone(), accumulate=True)
    assert torch.allclose(added, expected + x, atol=1e-4, rtol=1e-4)


def test_an_expert_out_of_range_is_refused(native: NativeKernels) -> None:
    bank = biased(make_bank("f32", "f32", 4, 64, 32), "f32")
    ids = torch.tensor([[4]], dtype=torch.int32)
    with pytest.raises(EngineError, match="out of range"):
        native.expert_ffn(torch.zeros(1, 64), ids, torch.ones(1, 1), bank)
