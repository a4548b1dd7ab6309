"""Decoding and chunks over pages against the reference; sums that no batch or cut changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ftengine.kernels.operands import HeadLayout
from ftengine.kernels.reference.attention import attention
from ftengine.kernels.triton import layer_calls
from ftengine.kernels.triton.layer_calls import Attended, KvPages
from tests.ftengine.kernels.operand_makers import Paged, make_paged
from tests.ftengine.kernels.triton.interpreter import Interpreter

HEADS = HeadLayout(4, 2, 24)
NAN = float("nan")


def reference(qkv: torch.Tensor, spec: Attended, paged: Paged) -> torch.Tensor:
    return attention(
        qkv,
        spec.heads,
        paged.keys,
        paged.values,
        paged.query_start,
        paged.context_len,
        paged.page_table,
        spec.scale,
        spec.window,
        spec.sinks,
    )


def decode(
    interpreter: Interpreter, qkv: torch.Tensor, spec: Attended, pages: KvPages
) -> torch.Tensor:
    rows, heads = qkv.shape[0], spec.heads
    sums = torch.full((rows, heads.heads, pages.num_splits, 2), NAN)
    parts = torch.full((rows, heads.heads, pages.num_splits, heads.head_dim), NAN)
    out = torch.full((rows, heads.heads * heads.head_dim), NAN)
    interpreter.run(
        layer_calls.attention_split(qkv, spec, pages, sums, parts),
        layer_calls.attention_merge(spec, pages, sums, parts, out),
    )
    return out


def chunks(
    interpreter: Interpreter, qkv: torch.Tensor, spec: Attended, pages: KvPages, paged: Paged
) -> torch.Tensor:
    starts = paged.query_start
    most = int((starts[1:] - starts[:-1]).max())
    out = torch.full((qkv.shape[0], spec.heads.heads * spec.heads.head_dim), NAN)
    interpreter.run(layer_calls.attention_chunk(qkv, spec, pages, starts, most, out))
    return out


def pages_of(paged: Paged) -> KvPages:
    return KvPages(paged.keys, paged.values, paged.context_len, paged.page_table)


@pytest.mark.parametrize(("window", "sinks"), [(0, False), (20, True)])
def test_decoding_agrees_with_the_reference(
    interpreter: Interpreter, window: int, sinks: bool
) -> None:
    paged = make_paged(HEADS, [(1, 300), (1, 5)])
    spec = Attended(HEADS, 0.2, window, torch.randn(4) if sinks else None, "f32")
    qkv = torch.randn(2, HEADS.qkv_cols)
    found = decode(interpreter, qkv, spec, pages_of(paged))
    assert torch.allclose(found, reference(qkv, spec, paged), atol=2e-5)


@pytest.mark.parametrize(("window", "sinks"), [(0, True), (20, False)])
def test_chunks_agree_with_the_reference(
    interpreter: Interpreter, window: int, sinks: bool
) -> None:
    paged = make_paged(HEADS, [(40, 290), (3, 3)])
    spec = Attended(HEADS, 0.2, window, torch.randn(4) if sinks else None, "f32")
    qkv = torch.randn(43, HEADS.qkv_cols)
    found = chunks(interpreter, qkv, spec, pages_of(paged), paged)
    assert torch.allclose(found, reference(qkv, spec, paged), atol=2e-5)


def test_bfloat16_pools(interpreter: Interpreter) -> None:
    paged = make_paged(HEADS, [(1, 70)], torch.bfloat16)
    spec = Attended(HEADS, 0.2)
    qkv = torch.randn(1, HEADS.qkv_cols)
    found = decode(interpreter, qkv, spec, pages_of(paged))
    assert torch.allclose(found, reference(qkv, spec, paged), atol=2e-2)


def test_q8_0_pools(interpreter: Interpreter) -> None:
    heads = HeadLayout(2, 1, 32)
    paged = make_paged(heads, [(1, 40)])
    scales = paged.keys.abs().nan_to_num().amax(-1, keepdim=True) / 127 + 1e-6
    value_scales = paged.values.abs().nan_to_num().amax(-1, keepdim=True) / 127 + 1e-6
    quants = (paged.keys.nan_to_num() / scales.half()).round().to(torch.int8)
    values = (paged.values.nan_to_num() / value_scales.half()).round().to(torch.int8)
    pages = KvPages(
        quants, values, paged.context_len, paged.page_table, scales.half(), value_scales.half()
    )
    widened = replace(
        paged,
        keys=quants.float() * scales.half().float(),
        values=values.float() * value_scales.half().float(),
    )
    spec = Attended(heads, 0.2, dot="f32")
    qkv = torch.randn(1, heads.qkv_cols)
    found = decode(interpreter, qkv, spec, pages)
    assert torch.allclose(found, reference(qkv, spec, widened), atol=2e-5)


def test_neither_batch_nor_chunk_changes_a_sum(interpreter: Interpreter) -> None:
    """float32 products, whose order in one row does not depend on the rows beside it."""
    paged = make_paged(HEADS, [(3, 290)])
    spec = Attended(HEADS, 0.2, dot="f32")
    qkv = torch.randn(3, HEADS.qkv_cols)
    whole = chunks(interpreter, qkv, spec, pages_of(paged), paged)
    for token in range(3):
        shorter = replace(
            paged,
            context_len=torch.tensor([288 + token]).int(),
            query_start=torch.tensor([0, 1]).int(),
        )
        alone = decode(interpreter, qkv[token : token + 1], spec, pages_of(shorter))
        assert torch.allclose(alone[0], whole[token], atol=1e-6)
