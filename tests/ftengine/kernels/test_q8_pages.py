"""q8_0 pages on every target: what is kept, how far from the truth, and attention over it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ftengine.errors import EngineError
from ftengine.kernels.native import HeadLayout, KvScales, NativeKernels
from ftengine.kernels.operands import KV_GROUP
from ftengine.kernels.reference.attention import attention
from ftengine.kernels.reference.kv_pages import quantized, widened
from ftengine.kernels.reference.rope import rope_store

from .operand_makers import Paged, make_paged

LAYOUTS = (HeadLayout(9, 3, 64), HeadLayout(4, 1, 32), HeadLayout(6, 2, 96), HeadLayout(8, 2, 128))
SEQUENCES = [(1, 400), (20, 33), (300, 300), (7, 10), (1, 1)]
NAN = float("nan")


def make_q8(heads: HeadLayout, sequences: list[tuple[int, int]]) -> tuple[Paged, KvScales]:
    """Slots that hold nothing have NaN scales."""
    paged = make_paged(heads, sequences)
    keys, key_scales = quantized(paged.keys)
    values, value_scales = quantized(paged.values)
    return replace(paged, keys=keys, values=values), KvScales(key_scales, value_scales)


def run(kernel, qkv, heads, paged, window=0, sinks=None, scales=None):  # type: ignore[no-untyped-def]
    return kernel(
        qkv, heads, paged.keys, paged.values, paged.query_start, paged.context_len,
        paged.page_table, heads.head_dim**-0.5, window=window, sinks=sinks, scales=scales,
    )  # fmt: skip


def stored(
    native: NativeKernels, heads: HeadLayout, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What rope_store keeps of values [n, head_dim], one after the other from the first page on."""
    count, pages = rows.shape[0], -(-rows.shape[0] // 16)
    shape = (pages, 1, 16, heads.head_dim)
    keys, values = torch.zeros(2, *shape, dtype=torch.int8)
    scales = torch.full((2, *shape[:3], heads.head_dim // KV_GROUP), NAN, dtype=torch.float16)
    qkv = torch.zeros(count, heads.qkv_cols)
    qkv[:, -heads.head_dim :] = rows
    none = torch.zeros(1, 0)
    native.rope_store(
        qkv, heads, none, none, torch.zeros(count, dtype=torch.int32), torch.arange(count),
        keys, values, scales=KvScales(scales[0], scales[1]),
    )  # fmt: skip
    return values.flatten(0, 2)[:count], scales[1].flatten(0, 2)[:count]


def test_what_is_kept_is_within_half_a_step_of_the_value(native: NativeKernels) -> None:
    """|x - q d| <= d / 2 for the exact scale d; rounding d to float16 adds |q| 2^-11 d."""
    heads = HeadLayout(1, 1, 64)
    rows = torch.randn(200, 64) * 10.0 ** torch.randint(-7, 4, (200, 1))
    rows[3, :32] = 0
    quants, scales = stored(native, heads, rows)
    want_quants, want_scales = quantized(rows)
    assert torch.equal(quants, want_quants)
    assert torch.equal(scales, want_scales)
    exact = rows.double().view(200, 2, 32).abs().amax(-1) / 127
    bound = exact * (0.5 + 127 * 2.0**-11 + 1e-5) + 127 * 2.0**-25
    error = (widened(quants, scales).double() - rows.double()).abs()
    assert bool((error <= bound.repeat_interleave(32, 1)).all())
    assert bool((error[3, :32] == 0).all())


def test_halves_are_rounded_away_from_zero(native: NativeKernels) -> None:
    rows = torch.zeros(1, 32)
    rows[0, :6] = torch.tensor([127.0, 0.5, -0.5, 1.5, -2.5, 0.49])
    quants, scales = stored(native, HeadLayout(1, 1, 32), rows)
    assert float(scales[0, 0]) == 1.0
    assert quants[0, :6].tolist() == [127, 1, -1, 2, -3, 0]


def test_every_float16_scale_is_the_nearest_one(native: NativeKernels) -> None:
    """Subnormal, tied, largest and too large ones among them."""
    bits = torch.arange(0, 0x7C00, 7, dtype=torch.int32).to(torch.int16).view(torch.float16)
    here, above = bits.double(), torch.nextafter(bits, torch.tensor(9e4).half()).double()
    wanted = torch.cat([here, (here + above) / 2, torch.tensor([7e4, 1e-9]).double()])
    rows = torch.zeros(wanted.shape[0], 32)
    rows[:, 5] = (wanted * 127).float()
    _, scales = stored(native, HeadLayout(1, 1, 32), rows)
    assert torch.equal(scales[:, 0], (rows[:, 5] / 127).half())


@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
def test_what_is_not_finite_shows_in_its_group_alone(native: NativeKernels, bad: float) -> None:
    rows = torch.randn(2, 64)
    rows[0, 40] = bad
    kept = widened(*stored(native, HeadLayout(1, 1, 64), rows))
    assert bool(kept[0, 32:].isnan().all())
    assert bool(kept[0, :32].isfinite().all())
    assert bool(kept[1].isfinite().all())
    want = widened(*quantized(rows))
    assert torch.equal(kept.nan_to_num(9e9), want.nan_to_num(9e9))


@pytest.mark.parametrize("heads", LAYOUTS, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_and_store_equal_the_reference(
    native: NativeKernels, heads: HeadLayout, interleaved: bool
) -> None:
    angles = 6 * torch.rand(64, heads.head_dim // 4)
    paged, scales = make_q8(heads, [(3, 20), (1, 1), (33, 33)])
    slots = paged.slots.clone()
    slots[1] = -1
    qkv, norm = torch.randn(37, heads.qkv_cols), torch.rand(heads.head_dim) + 0.5
    found = []
    for store in (native.rope_store, rope_store):
        work, keys, values = qkv.clone(), paged.keys.clone(), paged.values.clone()
        own = KvScales(scales.keys.clone(), scales.values.clone())
        store(
            work, heads, angles.cos(), angles.sin(), paged.positions, slots, keys, values,
            k_norm=norm, interleaved=interleaved, scales=own,
        )  # fmt: skip
        found.append((widened(keys, own.keys), values, own.values))
    (keys, values, value_scales), (want_keys, want_values, want_scales) = found
    # a key that differs in its last bit may be rounded to the neighbour: one step of its group
    step = want_keys.nan_to_num().abs().amax(-1, keepdim=True) / 126
    assert bool(((keys - want_keys).nan_to_num().abs() <= step).all())
    assert float(((keys - want_keys).nan_to_num().abs() > 1e-4).float().mean()) < 1e-2
    assert torch.equal(values, want_values)
    assert torch.equal(value_scales.nan_to_num(), want_scales.nan_to_num())


@pytest.mark.parametrize("heads", LAYOUTS, ids=str)
@pytest.mark.parametrize("window", [0, 40])
def test_attention_equals_the_reference(
    native: NativeKernels, heads: HeadLayout, window: int
) -> None:
    paged, scales = make_q8(heads, SEQUENCES)
    qkv = torch.randn(int(paged.query_start[-1]), heads.qkv_cols)
    sinks = torch.randn(heads.heads) if window else None
    expected = run(attention, qkv, heads, paged, window, sinks, scales)
    got = run(native.attention, qkv, heads, paged, window, sinks, scales)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_attention_is_as_far_from_the_truth_as_the_pages_allow(native: NativeKernels) -> None:
    """Scores move by at most D = scale * sum |q| dk, weights by a factor in exp(+-2D), hence
    outputs by at most max dv + (exp(2D) - 1) max |v|, where dk and dv are half a step each.
    """
    heads = HeadLayout(4, 2, 64)
    paged = make_paged(heads, SEQUENCES)
    keys, key_scales = quantized(paged.keys)
    values, value_scales = quantized(paged.values)
    q8, scales = replace(paged, keys=keys, values=values), KvScales(key_scales, value_scales)
    qkv = torch.randn(int(paged.query_start[-1]), heads.qkv_cols)
    got = run(native.attention, qkv, heads, q8, scales=scales)
    exact = replace(paged, keys=paged.keys.double(), values=paged.values.double())
    truth = run(_attention_in_float64, qkv.double(), heads, exact)
    half_step = 0.5 + 127 * 2.0**-11 + 1e-5
    dk = half_step * float(paged.keys.nan_to_num().abs().max()) / 127
    dv = half_step * float(paged.values.nan_to_num().abs().max()) / 127
    q = qkv[:, : heads.heads * heads.head_dim].view(-1, heads.heads, heads.head_dim)
    moved = heads.head_dim**-0.5 * q.abs().sum(-1).double() * dk
    most = float(paged.values.nan_to_num().abs().max())
    bound = dv + (torch.exp(2 * moved) - 1) * most + 1e-5
    error = (got.double() - truth).view(q.shape).abs().amax(-1)
    assert bool((error <= bound).all())
    assert float(error.mean()) > 1e-6, "nothing was rounded"


def _attention_in_float64(qkv, heads, keys, values, starts, lengths, table, scale, **_):  # type: ignore[no-untyped-def]
    out = torch.empty(qkv.shape[0], heads.heads * heads.head_dim, dtype=torch.float64)
    per_kv = heads.heads // heads.kv_heads
    for index, length in enumerate(lengths.tolist()):
        rows = range(int(starts[index]), int(starts[index + 1]))
        at = torch.arange(length)
        page, place = table[index, at // 16].long(), at % 16
        k, v = keys[page, :, place], values[page, :, place]
        for number, row in enumerate(rows):
            seen = length - len(rows) + number + 1
            for head in range(heads.heads):
                span = slice(head * heads.head_dim, (head + 1) * heads.head_dim)
                scores = k[:seen, head // per_kv] @ qkv[row, span] * scale
                out[row, span] = torch.softmax(scores, 0) @ v[:seen, head // per_kv]
    return out


@pytest.mark.parametrize("window", [0, 300])
def test_a_query_is_bit_identical_in_any_chunk_batch_and_thread_count(
    native: NativeKernels, window: int
) -> None:
    heads = HeadLayout(8, 2, 64)
    paged, scales = make_q8(heads, [(700, 700), (2, 30)])
    qkv = torch.randn(702, heads.qkv_cols)
    whole = run(native.attention, qkv, heads, paged, window, None, scales)
    for threads in (2, 1, 3):
        native.set_threads(threads)
        for first, last in ((0, 1), (17, 63), (255, 257), (250, 520), (699, 700)):
            part = native.attention(
                qkv[first:last], heads, paged.keys, paged.values,
                torch.tensor([0, last - first], dtype=torch.int32),
                torch.tensor([last], dtype=torch.int32),
                paged.page_table[:1], heads.head_dim**-0.5, window=window, scales=scales,
            )  # fmt: skip
            assert torch.equal(part, whole[first:last]), (threads, first, last)


def test_pages_and_scales_that_do_not_belong_together_are_errors(native: NativeKernels) -> None:
    heads = HeadLayout(2, 1, 32)
    paged, scales = make_q8(heads, [(2, 20)])
    qkv = torch.randn(2, heads.qkv_cols)
    with pytest.raises(EngineError, match="scales"):
        run(native.attention, qkv, heads, paged)
    plain = make_paged(heads, [(2, 20)])
    with pytest.raises(EngineError, match="scales"):
        run(native.attention, qkv, heads, plain, scales=scales)
    short = KvScales(scales.keys[:-1], scales.values)
    with pytest.raises(EngineError, match="scales"):
        run(native.attention, qkv, heads, paged, scales=short)
