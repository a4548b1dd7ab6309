"""RMS norm and rope_store against the reference, on every target."""

from __future__ import annotations

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import HeadLayout, NativeKernels
from ftengine.kernels.reference.norm import rms_norm
from ftengine.kernels.reference.rope import rope_store

from .operand_makers import Paged, make_paged

LAYOUTS = (
    (HeadLayout(9, 3, 64), 64),
    (HeadLayout(4, 4, 16), 8),
    (HeadLayout(4, 1, 12), 12),
    (HeadLayout(6, 2, 80), 40),
    (HeadLayout(2, 1, 20), 0),
)


def tables(rotary_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = 6 * torch.rand(64, rotary_dim // 2)
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("cols", [1, 7, 64, 100, 576])
@pytest.mark.parametrize("add_one", [False, True])
def test_norm_equals_the_reference(native: NativeKernels, cols: int, add_one: bool) -> None:
    x, weight = torch.randn(5, cols), torch.randn(cols)
    expected = rms_norm(x, weight, 1e-5, add_one=add_one)
    got = native.rms_norm(x, weight, 1e-5, add_one=add_one)
    torch.testing.assert_close(got, expected, rtol=3e-6, atol=3e-6)
    assert torch.equal(native.rms_norm(x[2:3], weight, 1e-5, add_one=add_one), got[2:3])


def test_norm_adds_into_the_residual_first(native: NativeKernels) -> None:
    x, weight = torch.randn(300, 200), torch.randn(200)
    residual = torch.randn(300, 210)[:, 4:204]
    expected_stream = residual + x
    out = native.rms_norm(x, weight, 1e-6, residual=residual)
    assert torch.equal(residual, expected_stream)
    expected = rms_norm(expected_stream, weight, 1e-6)
    torch.testing.assert_close(out, expected, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(("heads", "rotary_dim"), LAYOUTS, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("normed", [False, True])
def test_rope_and_store_equal_the_reference(
    native: NativeKernels,
    heads: HeadLayout,
    rotary_dim: int,
    interleaved: bool,
    dtype: torch.dtype,
    normed: bool,
) -> None:
    cos, sin = tables(rotary_dim)
    paged = make_paged(heads, [(3, 20), (1, 1), (33, 33)], dtype)
    slots = paged.slots.clone()
    slots[1] = -1
    qkv = torch.randn(37, heads.qkv_cols)
    norms = [torch.rand(heads.head_dim) + 0.5 if normed else None for _ in range(2)]
    results = []
    for store in (native.rope_store, rope_store):
        work, keys, values = qkv.clone(), paged.keys.clone(), paged.values.clone()
        store(
            work, heads, cos, sin, paged.positions, slots, keys, values,
            q_norm=norms[0], k_norm=norms[1], eps=1e-6, interleaved=interleaved,
        )  # fmt: skip
        results.append((work, keys.float(), values.float()))
    (work, keys, values), (want_work, want_keys, want_values) = results
    width = heads.heads * heads.head_dim
    torch.testing.assert_close(work[:, :width], want_work[:, :width], rtol=1e-5, atol=1e-5)
    assert torch.equal(work[:, width:], qkv[:, width:])
    step = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(keys, want_keys, rtol=step, atol=1e-5, equal_nan=True)
    assert torch.equal(values.nan_to_num(9e9), want_values.nan_to_num(9e9))


def call_with(native: NativeKernels, paged: Paged, heads: HeadLayout, **changed: object) -> None:
    cos, sin = tables(heads.head_dim)
    arguments: dict[str, object] = {
        "qkv": torch.randn(2, heads.qkv_cols),
        "heads": heads,
        "cos": cos,
        "sin": sin,
        "positions": paged.positions,
        "slots": paged.slots,
        "keys": paged.keys,
        "values": paged.values,
    }
    native.rope_store(**(arguments | changed))  # type: ignore[arg-type]


def test_places_out_of_range_are_errors(native: NativeKernels) -> None:
    heads = HeadLayout(2, 1, 16)
    paged = make_paged(heads, [(2, 5)])
    before = paged.keys.clone()
    end = paged.keys.shape[0] * 16
    with pytest.raises(EngineError, match="out of range"):
        call_with(native, paged, heads, slots=torch.tensor([0, end]))
    with pytest.raises(EngineError, match="out of range"):
        call_with(native, paged, heads, positions=torch.tensor([0, 64], dtype=torch.int32))
    with pytest.raises(EngineError, match="rope_store slots: need 2 contiguous"):
        call_with(native, paged, heads, slots=paged.slots.int())
    with pytest.raises(EngineError, match="shapes do not fit"):
        call_with(native, paged, heads, values=paged.values.bfloat16())
    assert torch.equal(paged.keys.nan_to_num(), before.nan_to_num())
