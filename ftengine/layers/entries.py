"""Entries that stand for many tokens: made as their tokens come, kept in pages, and chosen.

An entry lies in the page of its last token. Until then its tokens' numbers are a state of the
sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.kernels.reference.paged_rows import best_first, rows_at, sequences
from ftengine.layers.context import Span, StepContext
from ftengine.layers.linear import Linear
from ftengine.layers.norm import RmsNorm
from ftengine.layers.rotary import RopeTables, turn_last


def entry_slots(context: StepContext, index: int, length: int, ratio: int) -> torch.Tensor:
    """Where the entries of a sequence's first tokens lie: page * rows of a page + row.

    Shape: int64 [length // ratio].
    """
    last = (torch.arange(length // ratio) + 1) * ratio - 1
    return _slots(context.page_table[index, last // PAGE_TOKENS].long(), last, ratio)


def _slots(pages: torch.Tensor, last: torch.Tensor, ratio: int) -> torch.Tensor:
    rows = max(1, PAGE_TOKENS // ratio)
    return pages * rows + last % PAGE_TOKENS // ratio % rows


@dataclass(frozen=True)
class Pooling:
    """How tokens become one entry: softmax over them of gate + place, per number, weighs them.

    overlap: an entry has numbers of the window before it too, the first half of each token's; the
    second half is of its own window. first: where the numbers start in what entries are made from,
    then as many of the gate. Shape: place float32 [ratio, width], width = dim, or twice that.
    """

    ratio: int
    dim: int
    overlap: bool
    first: int
    place: torch.Tensor
    norm: RmsNorm

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.place.shape[1]

    @property
    def kept(self) -> int:
        """Tokens whose numbers are still needed by later ones."""
        return (2 if self.overlap else 1) * self.ratio - 1

    def step(
        self,
        made: torch.Tensor,
        positions: torch.Tensor,
        states: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows whose token ends a window, their entries before the rotation); states go on.

        Shape: made [n, ...], consecutive tokens of a sequence; states [kept, width] both.
        """
        middle, end = self.first + self.width, self.first + 2 * self.width
        kv = torch.cat([states[0], made[:, self.first : middle]])
        gate = torch.cat([states[1], made[:, middle:end]])
        ends = ((positions + 1) % self.ratio == 0).nonzero()[:, 0]
        entries = torch.empty(0, self.dim)
        if ends.shape[0]:
            entries = self._entries(kv, gate, ends, positions[ends])
        states[0].copy_(kv[kv.shape[0] - self.kept :])
        states[1].copy_(gate[gate.shape[0] - self.kept :])
        return ends, entries

    def _entries(
        self, kv: torch.Tensor, gate: torch.Tensor, ends: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        own = ends[:, None] + self.kept - self.ratio + 1 + torch.arange(self.ratio)
        values = kv[own].double()
        scores = gate[own].double() + self.place.double()
        if self.overlap:
            before = own - self.ratio
            first = kv[before][:, :, : self.dim].double()
            score = gate[before].double() + self.place.double()
            none = positions[:, None, None] < 2 * self.ratio - 1
            score = score[:, :, : self.dim].masked_fill(none, float("-inf"))
            values = torch.cat([first, values[:, :, self.dim :]], dim=1)
            scores = torch.cat([score, scores[:, :, self.dim :]], dim=1)
        pooled = (values * torch.softmax(scores, dim=1)).sum(dim=1).float()
        return self.norm.apply(pooled, torch.empty_like(pooled))


@dataclass(frozen=True)
class EntryStore:
    """Where one kind of entries goes. parts: of the layer's state, its numbers and its gates."""

    kv_index: int
    pooling: Pooling
    parts: tuple[int, int]

    def add(
        self,
        made: torch.Tensor,
        context: StepContext,
        span: Span,
        state: tuple[torch.Tensor, ...],
        rope: RopeTables,
    ) -> None:
        """Take a span's tokens and store the entries they complete."""
        rows, ratio = span.rows, self.pooling.ratio
        positions = context.positions[rows].long()
        first, second = self.parts
        ends, entries = self.pooling.step(made[rows], positions, (state[first], state[second]))
        if not ends.shape[0]:
            return
        last = positions[ends]
        turned = turn_last(entries[:, None], rope, last + 1 - ratio, True)[:, 0]
        where = _slots(context.slots[rows][ends] // PAGE_TOKENS, last, ratio)
        pool = context.pool.keys[self.kv_index]
        per_page = pool.shape[2]
        pool[where // per_page, 0, where % per_page] = turned.to(pool.dtype)


@dataclass(frozen=True)
class Entries:
    """The entries of one layer, and those that its choice is made by.

    state_index: which recurrent layer of the state pool this is.
    """

    state_index: int
    stores: tuple[EntryStore, ...]
    rope: RopeTables

    @property
    def kv_index(self) -> int:
        """Which pages hold what is attended to."""
        return self.stores[0].kv_index

    @property
    def ratio(self) -> int:
        """Tokens of an entry."""
        return self.stores[0].pooling.ratio

    def add(self, made: torch.Tensor, context: StepContext) -> None:
        """Take the step's tokens. Shape: made [n, what the layer's first product gives]."""
        for span in context.spans:
            state = context.state(self.state_index, span)
            for store in self.stores:
                store.add(made, context, span, state, self.rope)
            context.keep(self.state_index, span)

    def visible(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Entries of whole windows before each token's next. Shape: bool [n, length // ratio]."""
        number = torch.arange(length // self.ratio)
        return number[None, :] < ((positions + 1) // self.ratio)[:, None]


@dataclass(frozen=True)
class EntryChoice:
    """Small heads choose the top_k entries, by keys that are entries themselves.

    first: where the weights of the heads start in what the layer's first product gives.
    """

    num_heads: int
    top_k: int
    first: int
    q_up: Linear
    entries: Entries

    def choose(
        self, latent: torch.Tensor, made: torch.Tensor, context: StepContext
    ) -> list[torch.Tensor]:
        """Which entries each token of each sequence sees. Shape: bool [rows, entries] each."""
        count, entries = latent.shape[0], self.entries
        dim = entries.stores[1].pooling.dim
        q = self.q_up.apply(latent, torch.empty(count, self.num_heads * dim))
        q = turn_last(q.view(count, self.num_heads, dim), entries.rope, context.positions, True)
        weights = made[:, self.first : self.first + self.num_heads].double()
        weights = weights * (self.num_heads * dim) ** -0.5
        pool = context.pool.keys[entries.stores[1].kv_index]
        found = []
        for index, rows, length in sequences(context):
            keys = rows_at(pool, entry_slots(context, index, length, entries.ratio))[:, 0]
            visible = entries.visible(context.positions[rows].long(), length)
            if keys.shape[0] > self.top_k:
                dots = torch.einsum("nhd,td->nht", q[rows].double(), keys.double())
                scores = torch.einsum("nht,nh->nt", torch.relu(dots), weights[rows])
                best = best_first(scores.masked_fill(~visible, float("-inf")), self.top_k)
                kept = torch.zeros(visible.shape[0], keys.shape[0] + 1, dtype=torch.bool)
                visible = kept.scatter_(1, best % (keys.shape[0] + 1), True)[:, :-1]
            found.append(visible)
        return found
