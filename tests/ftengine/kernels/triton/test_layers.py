"""Norm, dense layers, rotation, router and the top of a vocabulary against the references."""

from __future__ import annotations

import pytest
import torch

from ftengine.kernels.operands import HeadLayout, RouteSpec
from ftengine.kernels.reference import kv_pages
from ftengine.kernels.reference import linear as reference_linear
from ftengine.kernels.reference.norm import rms_norm
from ftengine.kernels.reference.rope import rope_store
from ftengine.kernels.reference.route import route
from ftengine.kernels.triton import builds, expert_calls, layer_calls
from ftengine.kernels.triton.layer_calls import KvPages, Rotation
from ftengine.quant import format_named
from tests.ftengine.kernels.operand_makers import Paged, make_paged, make_weight
from tests.ftengine.kernels.triton.interpreter import Interpreter

NAN = float("nan")


@pytest.mark.parametrize("add_one", [False, True])
def test_norm_with_and_without_a_residual(interpreter: Interpreter, add_one: bool) -> None:
    x, weight, residual = torch.randn(2, 70), torch.randn(70), torch.randn(2, 70)
    plain, added, mine = torch.empty(2, 70), torch.empty(2, 70), residual.clone()
    interpreter.run(
        layer_calls.rms_norm(x, weight, 1e-5, plain, add_one=add_one),
        layer_calls.rms_norm(x, weight, 1e-5, added, residual=mine, add_one=add_one),
    )
    assert torch.allclose(plain, rms_norm(x, weight, 1e-5, add_one=add_one), atol=1e-5)
    expected = rms_norm(x, weight, 1e-5, residual=residual, add_one=add_one)
    assert torch.allclose(added, expected, atol=1e-5)
    assert torch.equal(mine, residual)


@pytest.mark.parametrize(("fmt", "cols"), [("bf16", 64), ("q8_0", 64), ("q4_k", 256)])
def test_dense_layers_of_few_and_of_many_tokens(
    interpreter: Interpreter, fmt: str, cols: int
) -> None:
    weight = make_weight(fmt, 40, cols)
    x, bias, start = torch.randn(2, cols), torch.randn(40), torch.randn(2, 40)
    few, added, many = torch.full((2, 40), NAN), start.clone(), torch.full((2, 40), NAN)
    arranged, group = torch.full((2, cols), NAN), expert_calls.one_group(2)
    interpreter.run(
        layer_calls.linear(x, weight, few, bias),
        layer_calls.linear(x, weight, added, accumulate=True),
        expert_calls.arrange(x, fmt, arranged),
        layer_calls.linear_gemm(arranged, weight, group, many, "f32"),
    )
    expected = reference_linear.linear(x, weight)
    assert torch.allclose(few, expected + bias, atol=1e-5)
    assert torch.allclose(added, expected + start, atol=1e-5)
    assert torch.allclose(many, expected, atol=1e-5)


def store_both(
    interpreter: Interpreter, interleaved: bool, normed: bool, dtype: torch.dtype
) -> tuple[Paged, Paged, torch.Tensor, torch.Tensor]:
    heads = HeadLayout(2, 1, 40)
    mine = make_paged(heads, [(2, 18)], dtype)
    theirs = Paged(
        *(
            getattr(mine, name)
            for name in Paged.__dataclass_fields__
            if name not in ("keys", "values")
        ),
        keys=mine.keys.clone(),
        values=mine.values.clone(),
    )
    qkv, expected = torch.randn(2, heads.qkv_cols), torch.empty(0)
    expected = qkv.clone()
    cos, sin = torch.randn(32, 12), torch.randn(32, 12)
    q_norm, k_norm = (torch.randn(40), torch.randn(40)) if normed else (None, None)
    slots = mine.slots.clone()
    slots[1] = -1
    rotation = Rotation(cos, sin, q_norm, k_norm, interleaved=interleaved)
    pages = KvPages(mine.keys, mine.values, mine.context_len, mine.page_table)
    interpreter.run(layer_calls.rope_store(qkv, heads, rotation, mine.positions, slots, pages))
    rope_store(
        expected,
        heads,
        cos,
        sin,
        mine.positions,
        slots,
        theirs.keys,
        theirs.values,
        q_norm,
        k_norm,
        interleaved=interleaved,
    )
    return mine, theirs, qkv[:, :80], expected[:, :80]


@pytest.mark.parametrize(("interleaved", "normed"), [(False, True), (True, False)])
def test_rotated_heads_and_stored_keys(
    interpreter: Interpreter, interleaved: bool, normed: bool
) -> None:
    mine, theirs, q, expected = store_both(interpreter, interleaved, normed, torch.float32)
    assert torch.allclose(q, expected, atol=1e-5)
    assert torch.allclose(mine.keys, theirs.keys, atol=1e-5, equal_nan=True)
    assert torch.equal(mine.values.nan_to_num(), theirs.values.nan_to_num())


def test_keys_are_rounded_to_the_pools_type(interpreter: Interpreter) -> None:
    mine, theirs, _, _ = store_both(interpreter, False, False, torch.bfloat16)
    assert torch.allclose(mine.keys.float(), theirs.keys.float(), rtol=8e-3, equal_nan=True)


def test_q8_0_keys_come_back_as_the_format_has_them(interpreter: Interpreter) -> None:
    heads = HeadLayout(1, 1, 64)
    qkv = torch.randn(1, heads.qkv_cols)
    keys, values = torch.zeros(2, 2, 1, 16, 64, dtype=torch.int8)
    scales = torch.zeros(2, 2, 1, 16, 2, dtype=torch.float16)
    one, table = torch.ones(1, dtype=torch.int32), torch.ones(1, 1, dtype=torch.int32)
    pages = KvPages(keys, values, one, table, scales[0], scales[1])
    still = Rotation(torch.ones(1, 32), torch.zeros(1, 32))
    position, slot = torch.zeros(1, dtype=torch.int32), torch.tensor([16 + 3])
    interpreter.run(layer_calls.rope_store(qkv, heads, still, position, slot, pages))
    fmt = format_named("q8_0")
    for pool, scale, raw in ((keys, scales[0], qkv[:, 64:128]), (values, scales[1], qkv[:, 128:])):
        found = pool[1, 0, 3].float().view(2, 32) * scale[1, 0, 3].float()[:, None]
        expected = torch.from_numpy(fmt.dequantize(fmt.quantize(raw.numpy())))
        assert torch.allclose(found.view(-1), expected[0], atol=2e-3)
        assert float((found.view(-1) - raw[0]).abs().max()) < 0.02
        quants, kept = kv_pages.quantized(raw)  # as the CPU's pages hold it
        assert torch.equal(pool[1, 0, 3], quants[0])
        assert torch.equal(scale[1, 0, 3], kept[0])


ROUTES = {
    "softmax": (RouteSpec("softmax", True, 2.5), False, False),
    "sigmoid, biased": (RouteSpec("sigmoid", True, 2.5, 1e-3), True, False),
    "square roots, scaled": (RouteSpec("sqrt_softplus", True, 2.5, 1e-20), True, True),
    "groups by two": (RouteSpec("sigmoid", True, 2.5, 1e-20, 3, 2, "top2"), True, False),
    "groups by one": (RouteSpec("softmax", False, 1.5, 0.0, 7, 2, "max"), False, False),
    "near ones": (RouteSpec("softmax", False, 1.0, jitter=0.1), False, False),
}


@pytest.mark.parametrize("name", ROUTES)
def test_router_chooses_as_the_reference(interpreter: Interpreter, name: str) -> None:
    spec, bias, scaled = ROUTES[name]
    logits = torch.randn(3, 21)
    logits[1, 4] = logits[1, 9] = 5.0  # equal ones: the lower id first
    extra, scale = (torch.randn(21) if there else None for there in (bias, scaled))
    count = 2 if spec.jitter else 5
    ids, weights = torch.zeros(3, count, dtype=torch.int32), torch.zeros(3, count)
    expected_ids, expected = torch.zeros_like(ids), torch.zeros_like(weights)
    interpreter.run(layer_calls.route(logits, spec, ids, weights, extra, scale))
    route(logits, spec, expected_ids, expected, extra, scale)
    assert torch.equal(ids, expected_ids)
    assert torch.allclose(weights, expected, atol=1e-6)


def best(
    interpreter: Interpreter, logits: torch.Tensor, keep: int
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The best 3 of one row, and the logarithm of its sum of exponentials."""
    blocks = -(-logits.shape[1] // builds.VOCAB_BLOCK)
    keys = torch.zeros(1, blocks, keep, dtype=torch.int64)
    sums, log_sums = torch.zeros(1, blocks, 2), torch.zeros(1)
    ids, values = torch.zeros(1, 3, dtype=torch.int32), torch.zeros(1, 3)
    interpreter.run(
        layer_calls.best_of_block(logits, keys, sums),
        layer_calls.merge_blocks(logits, keys, sums, ids, values, log_sums),
    )
    return ids[0], values[0], float(log_sums)


def test_largest_logits_come_sorted_with_their_sum(interpreter: Interpreter) -> None:
    logits = torch.randn(1, builds.VOCAB_BLOCK + 300)
    logits[0, 5] = logits[0, 2100] = logits[0].max() + 1  # equal ones, of two blocks
    ids, values, log_sums = best(interpreter, logits, 4)
    order = torch.sort(logits[0], descending=True, stable=True)
    assert ids.tolist() == order.indices[:3].tolist()
    assert torch.equal(values, order.values[:3])
    assert log_sums == pytest.approx(float(torch.logsumexp(logits[0], 0)), abs=1e-5)


@pytest.mark.slow
def test_a_logit_that_is_no_number_is_found(interpreter: Interpreter) -> None:
    logits = torch.randn(1, 300)
    logits[0, 7] = NAN
    ids, values, _ = best(interpreter, logits, 8)
    assert ids[0] == 7
    assert values[0].isnan()
