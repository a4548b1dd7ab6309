"""Paged K and V tensors of every layer. Who holds which page is policy/pages.py's business."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.kernels.operands import KV_GROUP, KvScales
from ftengine.kernels.row_copies import CopyRows, torch_copy_rows

Allocate = Callable[[int], torch.Tensor]
"""num_bytes -> uint8 [num_bytes], page-aligned."""

_Kind = tuple[tuple[int, ...], torch.dtype]
_LINE_BYTES = 64
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
    these that hold something. together: those of one shape lie in one block of memory, so that a
    page is copied by one call for all of them.

    Memory is handed out by the system page by page as it is first written.
    """

    def __init__(
        self,
        layers: Sequence[KvShape],
        num_pages: int,
        kv_format: KvFormat,
        allocate: Allocate,
        together: bool = False,
    ) -> None:
        self.num_pages = num_pages
        self.format = kv_format
        self._layers = tuple(layers)
        self._allocate = allocate
        self._together = together
        self._free: dict[_Kind, list[torch.Tensor]] = {}
        self._blocks = self._take_blocks() if together else []
        self.keys = [self._pages(item, item.head_dim) for item in layers]
        self.values = [self._pages(item, item.value_dim) for item in layers]
        self.scales = [self._scales(item) for item in layers]
        kept = [item for item in self.scales if item is not None]
        found = (*self.keys, *self.values, *(x for s in kept for x in (s.keys, s.values)))
        self.tensors = tuple(item for item in found if item.numel())
        if not together:
            self._blocks = [item.unsqueeze(0) for item in self.tensors]

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
        return KvPool(self._layers, num_pages, self.format, self._allocate, self._together)

    def copy_page(self, source: int, target: int, copy_rows: CopyRows = torch_copy_rows) -> None:
        """Copy one page's keys and values in every layer."""
        for block in map(_wide, self._blocks):
            copy_rows(block, (source,), block, (target,))

    def read_into(
        self,
        pages: Sequence[int],
        data: torch.Tensor,
        rows: Sequence[int],
        copy_rows: CopyRows = torch_copy_rows,
    ) -> None:
        """Copy pages out to rows of data. Shape: data uint8 [any, bytes_per_page], on the CPU."""
        for block, part in self.parts(data):
            copy_rows(block, pages, part, rows)

    def write_pages(
        self,
        pages: Sequence[int],
        data: torch.Tensor,
        rows: Sequence[int],
        copy_rows: CopyRows = torch_copy_rows,
    ) -> None:
        """Copy in what read_into gave. Shape: data uint8 [any, bytes_per_page], on the CPU."""
        for block, part in self.parts(data):
            copy_rows(part, rows, block, pages)

    def parts(self, data: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each block, and its place in rows of all of them. Shape: [tensors, pages or rows, width].

        data: uint8 [any, bytes_per_page], on the CPU.
        """
        start = 0
        for item in self._blocks:
            block = _wide(item)
            end = start + block.shape[0] * block.shape[2] * block.itemsize
            part = data[:, start:end]
            if start % block.itemsize or data.shape[1] % block.itemsize:
                block = block.view(torch.uint8)
            part = part.view(block.dtype)
            yield block, part.view(part.shape[0], block.shape[0], -1).transpose(0, 1)
            start = end

    def take_pages(self, source: KvPool, moves: Mapping[int, int]) -> None:
        """Copy pages of a pool of the same layers. moves: page there -> page here."""
        if not moves:
            return
        there, here = torch.tensor(list(moves)), torch.tensor(list(moves.values()))
        for mine, theirs in zip(self.tensors, source.tensors, strict=True):
            mine[here] = theirs[there]

    def _pages(self, item: KvShape, dim: int) -> torch.Tensor:
        return self._tensor(self._kind(item, dim))

    def _kind(self, item: KvShape, dim: int) -> _Kind:
        dtype = torch.int8 if self.format.quantizes(item) else self.format.dtype
        return (self.num_pages, item.num_kv_heads, item.page_rows, dim), dtype

    def _scales(self, item: KvShape) -> KvScales | None:
        if not self.format.quantizes(item):
            return None
        keys, values = (
            self._tensor(_scale_kind(self._kind(item, dim)))
            for dim in (item.head_dim, item.value_dim)
        )
        return KvScales(keys, values)

    def _take_blocks(self) -> list[torch.Tensor]:
        """Memory for all tensors, those of one shape side by side."""
        kinds: list[_Kind] = []
        for item in self._layers:
            own = [self._kind(item, dim) for dim in (item.head_dim, item.value_dim)]
            kinds += own
            kinds += [_scale_kind(kind) for kind in own] if self.format.quantizes(item) else []
        found = []
        for kind, count in Counter(kinds).items():
            shape, dtype = kind
            num_bytes = math.prod(shape) * dtype.itemsize
            # a tensor begins on a cache line, or by itself
            counts = [1] * count if num_bytes % _LINE_BYTES else [count]
            for number in counts if num_bytes else ():
                block = self._allocate(number * num_bytes).view(dtype).view(number, *shape)
                self._free.setdefault(kind, []).extend(block)
                found.append(block)
        return found

    def _tensor(self, kind: _Kind) -> torch.Tensor:
        shape, dtype = kind
        count = math.prod(shape)
        if not count:
            return torch.zeros(shape, dtype=dtype)
        if self._together:
            return self._free[kind].pop(0)
        return self._allocate(count * dtype.itemsize).view(dtype).view(shape)


def _scale_kind(kind: _Kind) -> _Kind:
    (*first, dim), _ = kind
    return (*first, dim // KV_GROUP), torch.float16


def page_bytes(layers: Sequence[KvShape], kv_format: KvFormat) -> int:
    """Bytes of one page over all layers, keys and values."""
    return sum(item.num_kv_heads * item.page_rows * kv_format.row_bytes(item) for item in layers)


def _wide(block: torch.Tensor) -> torch.Tensor:
    """The same pages in the widest numbers that fit: indexing copies number by number.

    Shape: [tensors, pages, ...]; returns [tensors, pages, width].
    """
    flat = block.flatten(2)
    even = flat.shape[2] * flat.itemsize % torch.int64.itemsize == 0
    return flat.view(torch.int64) if even else flat.view(torch.uint8)
