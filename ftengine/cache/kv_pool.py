"""Paged K and V tensors of every layer. Who holds which page is policy/pages.py's business."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.kernels.operands import KV_GROUP, KvScales

Allocate = Callable[[int], torch.Tensor]
"""num_bytes -> uint8 [num_bytes], page-aligned."""

_RUN_PAGES = 4
"""Shorter runs of pages than this are copied otherwise."""
_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class KvShape:
    """One set of keys and values. Units: numbers per head; rows of a page of 16 tokens.

    value_dim 0 = no values. quantizable: all that reads and writes it can do so in q8_0.
    """

    num_kv_heads: int
    head_dim: int
    value_dim: int
    page_rows: int = PAGE_TOKENS
    quantizable: bool = False


@dataclass(frozen=True)
class KvFormat:
    """How keys and values are kept: as `dtype`, or q8_0 where their shape allows it.

    q8_0: int8, and a float16 scale for every KV_GROUP numbers of a head.
    """

    dtype: torch.dtype
    q8_0: bool = False

    @property
    def name(self) -> str:
        """As --kv-format names it."""
        return "q8_0" if self.q8_0 else _NAMES[self.dtype]

    def quantizes(self, shape: KvShape) -> bool:
        """Whether this set is kept in q8_0."""
        return self.q8_0 and shape.quantizable

    def row_bytes(self, shape: KvShape) -> int:
        """Bytes of one row of keys and values of one head."""
        count = shape.head_dim + shape.value_dim
        if self.quantizes(shape):
            return count + count // KV_GROUP * torch.float16.itemsize
        return count * self.dtype.itemsize


class KvPool:
    """Shape: keys[layer], values[layer] [num_pages, num_kv_heads, page_rows, dim]; scales[layer]
    None, or of int8 keys and values float16 [..., dim / KV_GROUP]. tensors: all of
    these that hold something.

    Memory is handed out by the system page by page as it is first written.
    """

    def __init__(
        self,
        layers: Sequence[KvShape],
        num_pages: int,
        kv_format: KvFormat,
        allocate: Allocate,
    ) -> None:
        self.num_pages = num_pages
        self.format = kv_format
        self._layers = tuple(layers)
        self._allocate = allocate
        self.keys = [self._pages(item, item.head_dim) for item in layers]
        self.values = [self._pages(item, item.value_dim) for item in layers]
        self.scales = [self._scales(item) for item in layers]
        kept = [item for item in self.scales if item is not None]
        found = (*self.keys, *self.values, *(x for s in kept for x in (s.keys, s.values)))
        self.tensors = tuple(item for item in found if item.numel())

    @property
    def total_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(item.numel() * item.element_size() for item in self.tensors)

    @property
    def bytes_per_page(self) -> int:
        """Bytes of one page over all layers, keys and values."""
        return page_bytes(self._layers, self.format)

    @property
    def kept_as(self) -> str:
        """What the pages hold, by --kv-format's names: "q8_0", or "q8_0,bf16" where sets differ."""
        plain = replace(self.format, q8_0=False).name
        quantized = [self.format.quantizes(item) for item in self._layers]
        names = ["q8_0"] if any(quantized) else []
        return ",".join(names if names and all(quantized) else [*names, plain])

    def like(self, num_pages: int) -> KvPool:
        """An empty pool of the same layers with other pages."""
        return KvPool(self._layers, num_pages, self.format, self._allocate)

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page's keys and values in every layer."""
        with torch.inference_mode():
            for tensor in self.tensors:
                tensor[target] = tensor[source]

    def read_pages(self, pages: Sequence[int]) -> torch.Tensor:
        """Copy pages out. Shape: uint8 [len(pages), bytes_per_page], on the CPU."""
        at = torch.tensor(pages, dtype=torch.int64)
        parts = [_wide(tensor)[at].view(torch.uint8) for tensor in self.tensors]
        if not parts:
            return torch.zeros(len(pages), 0, dtype=torch.uint8, device="cpu")
        return torch.cat(parts, dim=1).cpu()

    def read_into(self, pages: Sequence[int], data: torch.Tensor, rows: Sequence[int]) -> None:
        """Copy pages out to rows of data. Shape: data uint8 [any, bytes_per_page], on the CPU."""
        if not self._copies_runs(rows):
            data[torch.tensor(rows, device="cpu")] = self.read_pages(pages)
            return
        taken, runs = torch.tensor(pages, dtype=torch.int64, device="cpu"), _runs(rows)
        with torch.inference_mode():
            for tensor, part in self._parts(data):
                for at, row, count in runs:
                    out = part[row : row + count]
                    torch.index_select(tensor, 0, taken[at : at + count], out=out)

    def write_pages(
        self, pages: Sequence[int], data: torch.Tensor, rows: Sequence[int] | None = None
    ) -> None:
        """Copy pages in that read_pages gave. rows: which rows of data, None = all of them.

        Shape: data uint8 [number of pages, bytes_per_page], on the CPU.
        """
        if not pages:
            return
        rows = range(len(pages)) if rows is None else rows
        taken, runs = torch.tensor(rows, dtype=torch.int64, device="cpu"), _runs(pages)
        with torch.inference_mode():
            if self._copies_runs(pages):
                for tensor, part in self._parts(data):
                    for at, page, count in runs:
                        out = tensor[page : page + count]
                        torch.index_select(part, 0, taken[at : at + count], out=out)
                return
            at_pages = torch.tensor(pages, dtype=torch.int64)
            for tensor, part in self._parts(data):
                # what is gathered of one layer is still in the processor's cache when it is spread
                wide = _wide(tensor)
                wide[at_pages] = part.index_select(0, taken).view(wide.dtype).to(wide.device)

    def _parts(self, data: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each tensor as bytes of its pages, and its place in rows of all of them."""
        start = 0
        for tensor in self.tensors:
            flat = tensor.flatten(1).view(torch.uint8)
            end = start + flat.shape[1]
            if end > start:
                yield flat, data[:, start:end]
            start = end

    def _copies_runs(self, ids: Sequence[int]) -> bool:
        """Whether copying run by run is faster than number by number; only in host memory."""
        on_host = all(tensor.device.type == "cpu" for tensor in self.tensors)
        return on_host and _RUN_PAGES * len(_runs(ids)) <= len(ids) + _RUN_PAGES

    def take_pages(self, source: KvPool, moves: Mapping[int, int]) -> None:
        """Copy pages of a pool of the same layers. moves: page there -> page here."""
        if not moves:
            return
        there, here = torch.tensor(list(moves)), torch.tensor(list(moves.values()))
        for mine, theirs in zip(self.tensors, source.tensors, strict=True):
            mine[here] = theirs[there]

    def _pages(self, item: KvShape, dim: int) -> torch.Tensor:
        dtype = torch.int8 if self.format.quantizes(item) else self.format.dtype
        return self._tensor((self.num_pages, item.num_kv_heads, item.page_rows, dim), dtype)

    def _scales(self, item: KvShape) -> KvScales | None:
        if not self.format.quantizes(item):
            return None
        first = (self.num_pages, item.num_kv_heads, item.page_rows)
        keys, values = (
            self._tensor((*first, dim // KV_GROUP), torch.float16)
            for dim in (item.head_dim, item.value_dim)
        )
        return KvScales(keys, values)

    def _tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        count = math.prod(shape)
        if not count:
            return torch.zeros(shape, dtype=dtype)
        return self._allocate(count * dtype.itemsize).view(dtype).view(shape)


def page_bytes(layers: Sequence[KvShape], kv_format: KvFormat) -> int:
    """Bytes of one page over all layers, keys and values."""
    return sum(item.num_kv_heads * item.page_rows * kv_format.row_bytes(item) for item in layers)


def _runs(ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """Where consecutive ids begin: (number in the list, id, how many)."""
    found: list[tuple[int, int, int]] = []
    for number, item in enumerate(ids):
        if found and found[-1][1] + found[-1][2] == item:
            found[-1] = (*found[-1][:2], found[-1][2] + 1)
        else:
            found.append((number, item, 1))
    return found


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """A row for each page, in the widest numbers that fit: indexing copies number by number."""
    flat = tensor.flatten(1)
    even = flat.shape[1] * flat.element_size() % torch.int64.itemsize == 0
    return flat.view(torch.int64) if even else flat.view(torch.uint8)
