"""The KV pool: bytes of each format, and pages that survive every way of moving them."""

from __future__ import annotations

import pytest
import torch

from ftengine.cache.kv_pool import KvFormat, KvPool, KvShape, page_bytes
from ftengine.device.torch_device import page_aligned
from ftengine.models.attention_specs import Q8_0_GROUP, Q8_0_GROUP_BYTES
from ftengine.quant import format_named

BF16, F32 = KvFormat(torch.bfloat16), KvFormat(torch.float32)
Q8 = KvFormat(torch.bfloat16, q8_0=True)
LAYERS = (
    KvShape(2, 64, 64, quantizable=True),
    KvShape(1, 24, 0),
    KvShape(3, 32, 32, quantizable=True),
    KvShape(1, 8, 0, page_rows=4),
)
FORMATS = pytest.mark.parametrize("kept", [BF16, F32, Q8], ids=lambda item: item.name)


def filled(kept: KvFormat, num_pages: int = 5, *, together: bool = False) -> KvPool:
    """Every page holds other bytes."""
    pool = KvPool(LAYERS, num_pages, kept, page_aligned, together)
    for tensor in pool.tensors:
        data = tensor.view(torch.uint8)
        data.copy_(torch.randint(0, 100, data.shape, dtype=torch.uint8))
    return pool


def bytes_of(pool: KvPool, page: int) -> list[bytes]:
    return [tensor[page].view(torch.uint8).numpy().tobytes() for tensor in pool.tensors]


@FORMATS
def test_bytes_are_those_of_the_tensors(kept: KvFormat) -> None:
    pool = KvPool(LAYERS, 3, kept, page_aligned)
    assert pool.bytes_per_page == page_bytes(LAYERS, kept)
    assert pool.total_bytes == 3 * pool.bytes_per_page
    assert pool.total_bytes == sum(t.numel() * t.element_size() for t in pool.tensors)


def test_specs_and_pools_mean_the_same_q8_0() -> None:
    stored = format_named("q8_0")
    assert (stored.block_elements, stored.block_bytes) == (Q8_0_GROUP, Q8_0_GROUP_BYTES)


def test_q8_0_takes_17_of_32_bytes_where_it_may() -> None:
    able = [item for item in LAYERS if item.quantizable]
    assert 32 * page_bytes(able, Q8) == 17 * page_bytes(able, BF16)
    rest = [item for item in LAYERS if not item.quantizable]
    assert page_bytes(rest, Q8) == page_bytes(rest, BF16)


def test_only_what_may_be_q8_0_is() -> None:
    pool = KvPool(LAYERS, 2, Q8, page_aligned)
    assert [item.dtype for item in pool.keys] == [
        torch.int8,
        torch.bfloat16,
        torch.int8,
        torch.bfloat16,
    ]
    shapes = [None if item is None else tuple(item.keys.shape) for item in pool.scales]
    assert shapes == [(2, 2, 16, 2), None, (2, 3, 16, 1), None]
    plain = KvPool(LAYERS, 2, BF16, page_aligned)
    assert all(item is None for item in plain.scales)
    assert (pool.kept_as, plain.kept_as) == ("q8_0,bf16", "bf16")
    assert KvPool(LAYERS[:1], 2, Q8, page_aligned).kept_as == "q8_0"
    assert KvPool(LAYERS[1:2], 2, Q8, page_aligned).kept_as == "bf16"


@FORMATS
def test_a_copied_page_is_the_page(kept: KvFormat) -> None:
    pool = filled(kept)
    before = bytes_of(pool, 1)
    pool.copy_page(1, 4)
    assert bytes_of(pool, 4) == before == bytes_of(pool, 1)


@FORMATS
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("rows", [[5, 6, 7], [0, 9, 4], [8, 7, 6]])
def test_pages_come_back_from_rows_wherever_these_are(
    kept: KvFormat, together: bool, rows: list[int]
) -> None:
    pool = filled(kept, together=together)
    data = torch.zeros(10, pool.bytes_per_page, dtype=torch.uint8)
    pages = [3, 0, 2]
    before = [bytes_of(pool, page) for page in pages]
    pool.read_into(pages, data, rows)
    untouched = [row for row in range(10) if row not in rows]
    assert not bool(data[untouched].any())
    other = filled(kept, together=together)
    kept_page = bytes_of(other, 2)
    other.write_pages([1, 4, 3], data, rows)
    assert [bytes_of(other, page) for page in (1, 4, 3)] == before
    assert bytes_of(other, 2) == kept_page


@FORMATS
def test_tensors_in_one_block_are_apart(kept: KvFormat) -> None:
    pool = filled(kept, together=True)
    apart = filled(kept)
    assert [t.shape for t in pool.tensors] == [t.shape for t in apart.tensors]
    assert pool.total_bytes == apart.total_bytes
    for number, tensor in enumerate(pool.tensors):
        assert tensor.data_ptr() % 64 == 0
        tensor.view(torch.uint8).fill_(number)
    for number, tensor in enumerate(pool.tensors):
        assert bool((tensor.view(torch.uint8) == number).all())


@FORMATS
def test_a_resized_pool_takes_the_pages_over(kept: KvFormat) -> None:
    pool = filled(kept)
    larger = pool.like(9)
    larger.take_pages(pool, {4: 8, 2: 0})
    assert bytes_of(larger, 8) == bytes_of(pool, 4)
    assert bytes_of(larger, 0) == bytes_of(pool, 2)
    assert larger.format == kept
