"""The routed layer against the reference, on every target."""

from __future__ import annotations

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.operands import ACTIVATIONS, ExpertBank
from ftengine.kernels.reference.expert_ffn import expert_ffn

from .operand_makers import make_bank, route

BANKS = (
    ("f32", "f32", 4, 64, 48),
    ("q4_1", "q4_1", 8, 64, 96),
    ("bf16", "q8_0", 8, 96, 64),
    ("q8_0", "q4_0", 4, 576, 1536),
    ("q4_0", "f16", 5, 64, 48),
)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got - expected).abs().max() <= 3e-6 * expected.abs().max()


@pytest.mark.parametrize("shape", BANKS, ids=lambda shape: "-".join(map(str, shape)))
def test_layers_equal_the_reference_in_any_batch(
    native: NativeKernels, shape: tuple[str, str, int, int, int]
) -> None:
    bank = make_bank(*shape)
    ids, weights = route(80, 2, bank.num_experts)
    x = torch.randn(80, bank.hidden)
    expected = expert_ffn(x, ids, weights, bank)
    whole = native.expert_ffn(x, ids, weights, bank)
    assert_near(whole, expected)
    for tokens in (1, 2, 3, 5, 8, 17):
        part = native.expert_ffn(x[:tokens], ids[:tokens], weights[:tokens], bank)
        assert torch.equal(part, whole[:tokens])
    for threads in (1, 3):
        native.set_threads(threads)
        assert torch.equal(native.expert_ffn(x, ids, weights, bank), whole)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_equal_the_reference(native: NativeKernels, activation: str) -> None:
    bank = make_bank("f32", "f32", 3, 64, 32, activation)
    ids, weights = route(5, 2, 3)
    x = 40 * torch.randn(5, 64)
    assert_near(native.expert_ffn(x, ids, weights, bank), expert_ffn(x, ids, weights, bank))


def test_a_dense_mlp_is_one_expert(native: NativeKernels) -> None:
    bank = make_bank("q4_1", "q4_1", 1, 576, 1536)
    x, ids, weights = (
        torch.randn(150, 576),
        torch.zeros(150, 1, dtype=torch.int32),
        torch.ones(150, 1),
    )
    assert_near(native.expert_ffn(x, ids, weights, bank), expert_ffn(x, ids, weights, bank))


def test_accumulate_and_strides(native: NativeKernels) -> None:
    bank = make_bank("q8_0", "q8_0", 4, 64, 64)
    ids, weights = route(6, 2, 4)
    x = torch.randn(6, 70)[:, 2:66]
    buffer = torch.randn(6, 80)
    before = buffer.clone()
    alone = native.expert_ffn(x.contiguous(), ids, weights, bank)
    native.expert_ffn(x, ids, weights, bank, out=buffer[:, 8:72], accumulate=True)
    assert torch.equal(buffer[:, 8:72], before[:, 8:72] + alone)
    assert torch.equal(buffer[:, :8], before[:, :8])
    assert torch.equal(buffer[:, 72:], before[:, 72:])


def test_rows_may_lie_anywhere(native: NativeKernels) -> None:
    bank = make_bank("q4_1", "q4_1", 4, 64, 64)
    ids, weights = route(5, 2, 4)
    x = torch.randn(5, 64)
    order = [2, 0, 3, 1]
    moved = bank.data[order].clone()
    rows = torch.tensor([moved[order.index(e)].data_ptr() for e in range(4)], dtype=torch.int64)
    empty = ExpertBank(torch.zeros_like(bank.data), bank.layout, "q4_1", "q4_1", 64, 64)
    got = native.expert_ffn(x, ids, weights, empty, rows=rows)
    assert torch.equal(got, native.expert_ffn(x, ids, weights, bank))


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
def test_an_expert_id_out_of_range_is_an_error(native: NativeKernels, bad: int) -> None:
    bank = make_bank("f32", "f32", 4, 32, 32)
    ids = torch.tensor([[0, 1], [2, bad]], dtype=torch.int32)
    with pytest.raises(EngineError, match="an expert id is out of range"):
        native.expert_ffn(torch.randn(2, 32), ids, torch.ones(2, 2), bank)


def test_wrong_operands_are_refused(native: NativeKernels) -> None:
    bank = make_bank("f32", "f32", 4, 32, 32)
    ids, weights = route(2, 2, 4)
    with pytest.raises(EngineError, match="need contiguous int32 ids"):
        native.expert_ffn(torch.randn(2, 32), ids.long(), weights, bank)
    with pytest.raises(EngineError, match="shapes do not fit"):
        native.expert_ffn(torch.randn(2, 64), ids, weights, bank)
