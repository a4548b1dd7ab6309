"""Batch -> the index tensors of a StepContext. Buffers are made once; numpy writes, torch reads."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ftengine.cache.kv_pool import KvPool
from ftengine.cache.policy.pages import PAGE_TOKENS, pages_for
from ftengine.cache.state_pool import StatePool
from ftengine.kernels.state_operands import SpanIndex
from ftengine.layers.context import Gather, Reach, Span, StepContext, Workspace
from ftengine.scheduler.batch import Work


class Indices(Protocol):
    """Where index buffers lie: gpu/indices.py's are seen by a device once they are sent."""

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[npt.NDArray[Any], Any]:
        """What is written and what a step is given, zeroed; int32 or int64."""


Take = Callable[[tuple[int, ...], torch.dtype], tuple[npt.NDArray[Any], Any]]


class HostIndices:
    """Both are the same memory."""

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[npt.NDArray[Any], Any]:
        """As Indices.take."""
        tensor = torch.zeros(shape, dtype=dtype)
        return tensor.numpy(), tensor


def index_bytes(
    max_tokens: int, max_sequences: int, context_tokens: int, states: bool = False
) -> int:
    """Most that StepInputs takes of an Indices whose parts begin at multiples of 256 bytes.

    states: whether there are layers that keep one.
    """
    pages = pages_for(context_tokens)
    spans = 24 * max_tokens + 5 * 256 if states else 0
    return 28 * max_tokens + 4 * max_sequences * (pages + 2) + 8 * 256 + spans


class StepInputs:
    """Index buffers for steps of at most max_tokens tokens and max_sequences sequences."""

    def __init__(
        self,
        workspace: Workspace,
        pool: KvPool,
        max_sequences: int,
        context_tokens: int,
        states: StatePool | None = None,
        indices: Indices | None = None,
        gather: Gather | None = None,
    ) -> None:
        self._workspace = workspace
        self._pool = pool
        self._states = states
        self._gather = gather
        self._on_device = indices is not None and not isinstance(indices, HostIndices)
        max_tokens = workspace.max_tokens
        max_pages = pages_for(context_tokens)
        # numpy writes single elements and slices several times faster than torch
        take = (indices or HostIndices()).take
        self._np_ids, self.token_ids = take((max_tokens,), torch.int64)
        self._np_positions, self._positions = take((max_tokens,), torch.int32)
        self._np_slots, self._slots = take((max_tokens,), torch.int64)
        self._np_wanted, self._wanted = take((max_tokens,), torch.int64)
        self._np_start, self._query_start = take((max_sequences + 1,), torch.int32)
        self._np_context, self._context_len = take((max_sequences,), torch.int32)
        self._np_pages, self._page_table = take((max_sequences, max_pages), torch.int32)
        self._rows: list[list[int]] = [[] for _ in range(max_sequences)]
        self._spans = None if states is None else _SpanArrays(take, max_tokens)

    def use_pool(self, pool: KvPool) -> None:
        """Steps from now on read and write another pool, in which pages may have other ids."""
        self._pool = pool
        self._rows = [[] for _ in self._rows]

    def fill(self, work: Items[Work], wanted: list[int] | None, pages: int = 0) -> StepContext:
        """Write one step's indices. `wanted` as in StepContext; pages: width of its page table, 0 =
        all that a context may have.
        """
        at = 0
        for row, item in enumerate(work):
            self._fill_row(row, at, item)
            at += item.num_tokens
        count = len(work)
        spans = () if self._states is None else _spans(work, self._states)
        span_index = None
        if self._spans is not None:
            span_index = self._spans.fill(spans, self._np_positions)
        if wanted is not None:
            self._np_wanted[: len(wanted)] = wanted
        table = self._page_table[:count, : pages or self._page_table.shape[1]]
        return StepContext(
            positions=self._positions[:at],
            slots=self._slots[:at],
            query_start=self._query_start[: count + 1],
            context_len=self._context_len[:count],
            page_table=table,
            wanted=None if wanted is None else self._wanted[: len(wanted)],
            pool=self._pool,
            buffers=self._workspace.views(at),
            states=self._states,
            spans=spans,
            span_index=span_index,
            token_ids=self.token_ids[:at],
            gather=self._gather,
            reach=None if wanted is None else self._reach(work, table),
        )

    def _reach(self, work: Items[Work], table: torch.Tensor) -> Reach | None:
        """Of the tokens that choose one; None where a device would have to be told."""
        if self._on_device:
            return None
        rows = [row for row, item in enumerate(work) if item.samples]
        start = torch.arange(len(rows) + 1, dtype=torch.int32)
        return Reach(start, self._context_len[rows], table[rows])

    def _fill_row(self, row: int, at: int, item: Work) -> None:
        sequence, start, count = item.sequence, item.start, item.num_tokens
        end = start + count
        self._fill_pages(row, sequence.pages[: pages_for(end)])
        self._np_start[row + 1] = at + count
        self._np_context[row] = end
        if count == 1:
            self._np_ids[at] = sequence.tokens[start]
            self._np_positions[at] = start
            page = sequence.pages[start // PAGE_TOKENS]
            self._np_slots[at] = page * PAGE_TOKENS + start % PAGE_TOKENS
            return
        self._np_ids[at : at + count] = sequence.tokens[start:end]
        positions = np.arange(start, end, dtype=np.int64)
        self._np_positions[at : at + count] = positions
        pages = self._np_pages[row][positions // PAGE_TOKENS].astype(np.int64)
        self._np_slots[at : at + count] = pages * PAGE_TOKENS + positions % PAGE_TOKENS

    def _fill_pages(self, row: int, pages: list[int]) -> None:
        if self._rows[row] != pages:  # unchanged in 15 of 16 decode steps
            self._np_pages[row, : len(pages)] = pages
            self._rows[row] = pages


class _SpanArrays:
    """Where the spans of a step stand, as kernels read it."""

    def __init__(self, take: Take, max_tokens: int) -> None:
        self._np_start, self._start = take((max_tokens + 1,), torch.int32)
        self._np_slot, self._slot = take((max_tokens,), torch.int64)
        self._np_keep, self._keep = take((max_tokens,), torch.int64)
        self._np_position, self._position = take((max_tokens,), torch.int32)

    def fill(self, spans: Items[Span], positions: npt.NDArray[Any]) -> SpanIndex:
        """Spans without tokens are left out: they are there for saves that end a sequence's part.

        Shape: positions int32 [tokens of the step or more].
        """
        at = 0
        for span in spans:
            if span.rows.stop > span.rows.start:
                self._np_slot[at], self._np_keep[at] = span.slot, span.keep
                self._np_start[at + 1] = span.rows.stop
                self._np_position[at] = positions[span.rows.start]
                at += 1
        return SpanIndex(self._start, self._slot, self._keep, self._position, at)


def _spans(work: Items[Work], states: StatePool) -> tuple[Span, ...]:
    """Where each sequence's tokens stand; a sequence at its beginning starts from nothing."""
    spans = []
    at = 0
    for item in work:
        slot = item.sequence.state_slot
        if item.start == 0:
            states.reset(slot)
        end = at + item.num_tokens
        first = at
        for position, keep in item.saves:
            cut = at + position - item.start
            spans.append(Span(slice(first, cut), slot, keep))
            first = cut
        spans.append(Span(slice(first, end), slot))
        at = end
    return tuple(spans)
