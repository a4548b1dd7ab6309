"""Batch -> the index tensors of a StepContext. Buffers are made once; numpy writes, torch reads."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import torch

from ftengine.cache.kv_pool import KvPool
from ftengine.cache.policy.pages import PAGE_TOKENS, pages_for
from ftengine.cache.state_pool import StatePool
from ftengine.layers.context import Span, StepContext, Workspace
from ftengine.scheduler.batch import Work


class StepInputs:
    """Index buffers for steps of at most max_tokens tokens and max_sequences sequences."""

    def __init__(
        self,
        workspace: Workspace,
        pool: KvPool,
        max_sequences: int,
        context_tokens: int,
        states: StatePool | None = None,
    ) -> None:
        self._workspace = workspace
        self._pool = pool
        self._states = states
        max_tokens = workspace.max_tokens
        max_pages = pages_for(context_tokens)
        self.token_ids = torch.zeros(max_tokens, dtype=torch.int64)
        self._positions = torch.zeros(max_tokens, dtype=torch.int32)
        self._slots = torch.zeros(max_tokens, dtype=torch.int64)
        self._query_start = torch.zeros(max_sequences + 1, dtype=torch.int32)
        self._context_len = torch.zeros(max_sequences, dtype=torch.int32)
        self._page_table = torch.zeros(max_sequences, max_pages, dtype=torch.int32)
        # numpy writes single elements and slices several times faster than torch
        self._np_ids = self.token_ids.numpy()
        self._np_positions = self._positions.numpy()
        self._np_slots = self._slots.numpy()
        self._np_start = self._query_start.numpy()
        self._np_context = self._context_len.numpy()
        self._np_pages = self._page_table.numpy()
        self._rows: list[list[int]] = [[] for _ in range(max_sequences)]

    def use_pool(self, pool: KvPool) -> None:
        """Steps from now on read and write another pool, in which pages may have other ids."""
        self._pool = pool
        self._rows = [[] for _ in self._rows]

    def fill(self, work: Items[Work], wanted: list[int] | None) -> StepContext:
        """Write one step's indices. `wanted` as in StepContext."""
        at = 0
        for row, item in enumerate(work):
            self._fill_row(row, at, item)
            at += item.num_tokens
        count = len(work)
        return StepContext(
            positions=self._positions[:at],
            slots=self._slots[:at],
            query_start=self._query_start[: count + 1],
            context_len=self._context_len[:count],
            page_table=self._page_table[:count],
            wanted=None if wanted is None else torch.tensor(wanted, dtype=torch.int64),
            pool=self._pool,
            buffers=self._workspace.views(at),
            states=self._states,
            spans=() if self._states is None else _spans(work, self._states),
            token_ids=self.token_ids[:at],
        )

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
