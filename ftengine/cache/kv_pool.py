"""Paged K and V tensors of every layer. Who holds which page is policy/pages.py's business."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ftengine.cache.policy.pages import PAGE_TOKENS

Allocate = Callable[[int], torch.Tensor]
"""num_bytes -> uint8 [num_bytes], page-aligned."""


@dataclass(frozen=True)
class KvShape:
    """One set of keys and values. Units: numbers per head; rows of a page of 16 tokens.

    value_dim 0 = no values.
    """

    num_kv_heads: int
    head_dim: int
    value_dim: int
    page_rows: int = PAGE_TOKENS


class KvPool:
    """Shape: keys[layer], values[layer] [num_pages, num_kv_heads, page_rows, dim] in `dtype`.

    Memory is handed out by the system page by page as it is first written.
    """

    def __init__(
        self,
        layers: Sequence[KvShape],
        num_pages: int,
        dtype: torch.dtype,
        allocate: Allocate,
    ) -> None:
        self.num_pages = num_pages
        self.dtype = dtype
        self._layers = tuple(layers)
        self._allocate = allocate
        keys = [_pages(item, item.head_dim, num_pages, dtype, allocate) for item in layers]
        values = [_pages(item, item.value_dim, num_pages, dtype, allocate) for item in layers]
        self.keys, self.values = keys, values

    @property
    def total_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(item.numel() * item.element_size() for item in (*self.keys, *self.values))

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page over all layers, keys and values."""
        return page_bytes(self._layers, self.dtype)

    def like(self, num_pages: int) -> KvPool:
        """An empty pool of the same layers with other pages."""
        return KvPool(self._layers, num_pages, self.dtype, self._allocate)

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's keys and values in every layer."""
        with torch.inference_mode():
            for tensor in (*self.keys, *self.values):
                tensor[target] = tensor[source]

    def read_pages(self, pages: Sequence[int]) -> torch.Tensor:
        """Copy pages out. Shape: uint8 [len(pages), bytes_per_page], on the CPU."""
        at = torch.tensor(pages, dtype=torch.int64)
        parts = [tensor[at].flatten(1).view(torch.uint8) for tensor in (*self.keys, *self.values)]
        return torch.cat(parts, dim=1) if parts else torch.zeros(len(pages), 0, dtype=torch.uint8)

    def write_pages(self, pages: Sequence[int], data: torch.Tensor) -> None:
        """Copy pages in that read_pages gave. Shape: data uint8 [len(pages), bytes_per_page]."""
        if not pages:
            return
        at = torch.tensor(pages, dtype=torch.int64)
        start = 0
        for tensor in (*self.keys, *self.values):
            end = start + tensor[0].numel() * tensor.element_size()
            part = data[:, start:end].contiguous().view(self.dtype)
            with torch.inference_mode():
                tensor[at] = part.view(len(pages), *tensor.shape[1:])
            start = end

    def take_pages(self, source: KvPool, moves: Mapping[int, int]) -> None:
        """Copy pages of a pool of the same layers. moves: page there -> page here."""
        if not moves:
            return
        there, here = torch.tensor(list(moves)), torch.tensor(list(moves.values()))
        for mine, theirs in zip(
            (*self.keys, *self.values), (*source.keys, *source.values), strict=True
        ):
            mine[here] = theirs[there]


def page_bytes(layers: Sequence[KvShape], dtype: torch.dtype) -> int:
    """Bytes of one page over all layers, keys and values."""
    rows = ((item, item.head_dim + item.value_dim) for item in layers)
    return sum(item.num_kv_heads * item.page_rows * dim for item, dim in rows) * dtype.itemsize


def _pages(
    item: KvShape, dim: int, num_pages: int, dtype: torch.dtype, allocate: Allocate
) -> torch.Tensor:
    shape = (num_pages, item.num_kv_heads, item.page_rows, dim)
    count = math.prod(shape)
    if not count:
        return torch.zeros(shape, dtype=dtype)
    return allocate(count * dtype.itemsize).view(dtype).view(shape)
