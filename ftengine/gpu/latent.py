"""Latent attention and its indexer as launches, for GpuKernels. Meanings: dispatch.Kernels.

A chunk of a prompt goes through in slices of tokens, so that work memory stays small beside what
the heads of all its tokens would take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch

from ftengine.gpu.arena import Arena
from ftengine.gpu.tools import GpuTools
from ftengine.kernels.latent_operands import (
    Chosen,
    IndexHeads,
    LatentHeads,
    LatentWeights,
    StepPages,
    Turn,
)
from ftengine.kernels.operands import HeadLayout
from ftengine.kernels.triton import latent_calls, layer_calls
from ftengine.kernels.triton.latent_calls import (
    HeadRows,
    IndexQueries,
    LatentKeys,
    LatentQueries,
    LatentSpec,
    table_tokens,
)
from ftengine.kernels.triton.layer_calls import SPLIT_TOKENS, Attended, KvPages

SLICE_TOKENS = 64
"""Tokens of a chunk that are worked on at a time."""


class LatentLaunches(ABC):
    """A part of GpuKernels."""

    tools: GpuTools

    @property
    @abstractmethod
    def arena(self) -> Arena:
        """What launches work in."""

    @property
    @abstractmethod
    def choice(self) -> Chosen:
        """Where choices of keys are kept, for the longest step."""

    def latent_store(
        self,
        latent: torch.Tensor,
        key: torch.Tensor,
        weights: LatentWeights,
        turn: Turn,
        positions: torch.Tensor,
        slots: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """Norm the latent, rotate the key, store both."""
        call = latent_calls.latent_store(latent, key, weights, turn, positions, slots, pool)
        self.tools.launch(call)

    def latent_attention(
        self,
        q: torch.Tensor,
        heads: LatentHeads,
        weights: LatentWeights,
        turn: Turn,
        step: StepPages,
        pool: torch.Tensor,
        out: torch.Tensor,
        chosen: Chosen | None = None,
    ) -> None:
        """Attend over latents, of all tokens before or of the chosen ones."""
        spec = LatentSpec(heads, weights, turn, self.tools.dot)
        tokens = q.shape[0]
        if chosen is None:
            keys = LatentKeys(pool, step.page_table, step.context_len, chosen=False)
        else:
            keys = LatentKeys(pool, chosen.slots[:tokens], chosen.counts[:tokens], chosen=True)
        if tokens == step.context_len.shape[0]:
            self._decode(spec, q, step, keys, out)
            return
        for rows in _slices(tokens):
            mine = keys
            if keys.chosen:
                mine = LatentKeys(pool, keys.places[rows], keys.lengths[rows], chosen=True)
            self._chunk(spec, q[rows], rows.start, step, mine, out[rows])

    def index_store(
        self,
        key: torch.Tensor,
        index: IndexHeads,
        turn: Turn,
        positions: torch.Tensor,
        slots: torch.Tensor,
        pool: torch.Tensor,
    ) -> None:
        """Norm, rotate and store the keys that an indexer compares."""
        self.tools.launch(latent_calls.index_store(key, index, turn, positions, slots, pool))

    def sees_all(self, step: StepPages, top_k: int) -> bool:
        """Whether the page table has no room for more keys: the same for a graph's whole life."""
        return table_tokens(step) <= top_k

    def index_choose(
        self,
        q: torch.Tensor,
        factors: torch.Tensor,
        index: IndexHeads,
        turn: Turn,
        step: StepPages,
        pool: torch.Tensor,
    ) -> Chosen:
        """The keys that each token is to see, valid until the next call."""
        dot, tokens = self.tools.dot, q.shape[0]
        few = tokens == step.context_len.shape[0]
        for rows in (slice(0, tokens),) if few else _slices(tokens):
            self.arena.reset()
            scores = self.arena.take(rows.stop - rows.start, table_tokens(step))
            positions = step.positions[rows]
            queries = IndexQueries(q[rows], factors[rows], positions, rows.start)
            self.tools.launch(
                latent_calls.index_scores(queries, index, turn, step, pool, scores, dot)
            )
            slots, counts = self.choice.slots[rows], self.choice.counts[rows]
            self.tools.launch(
                latent_calls.index_choose(scores, positions, rows.start, step, slots, counts)
            )
        return Chosen(self.choice.slots[:tokens], self.choice.counts[:tokens])

    def _decode(
        self,
        spec: LatentSpec,
        q: torch.Tensor,
        step: StepPages,
        keys: LatentKeys,
        out: torch.Tensor,
    ) -> None:
        """One token of every sequence: cuts side by side, then merged."""
        self.arena.reset()
        heads, tokens = spec.heads, q.shape[0]
        seen = keys.places.shape[1] if keys.chosen else table_tokens(step)
        shape = tokens, heads.count, -(-seen // SPLIT_TOKENS)
        queries = LatentQueries(self._absorbed(spec, q), q, step.positions)
        sums, parts = self.arena.take(*shape, 2), self.arena.take(*shape, heads.kv_rank)
        found = self.arena.take(tokens, heads.count * heads.kv_rank)
        self.tools.launch(latent_calls.latent_split(spec, queries, keys, sums, parts))
        asked = Attended(HeadLayout(heads.count, 1, heads.kv_rank), spec.weights.scale)
        pages = KvPages(keys.pool, keys.pool, keys.lengths, keys.places)
        self.tools.launch(layer_calls.attention_merge(asked, pages, sums, parts, found))
        self._values(spec, found, out)

    def _chunk(
        self,
        spec: LatentSpec,
        q: torch.Tensor,
        first: int,
        step: StepPages,
        keys: LatentKeys,
        out: torch.Tensor,
    ) -> None:
        """Some tokens of a chunk, from number `first` of the step on."""
        self.arena.reset()
        heads, tokens = spec.heads, q.shape[0]
        absorbed = self._absorbed(spec, q)
        queries = LatentQueries(absorbed, q, step.positions[first : first + tokens], first)
        found = self.arena.take(tokens, heads.count * heads.kv_rank)
        call = latent_calls.latent_chunk(spec, queries, keys, step.query_start, found)
        self.tools.launch(call)
        self._values(spec, found, out)

    def _absorbed(self, spec: LatentSpec, q: torch.Tensor) -> torch.Tensor:
        """Queries against latents. Shape: [tokens, heads * rank]."""
        heads = spec.heads
        found = self.arena.take(q.shape[0], heads.count * heads.kv_rank)
        source, target = HeadRows(q, heads.head_dim), HeadRows(found, heads.kv_rank)
        dot = spec.dot
        self.tools.launch(latent_calls.head_product(source, spec.weights.key_up, target, dot))
        return found

    def _values(self, spec: LatentSpec, found: torch.Tensor, out: torch.Tensor) -> None:
        """Values of what was found. Shape: found [tokens, heads * rank]; out [tokens, heads *
        value_dim].
        """
        heads = spec.heads
        source, target = HeadRows(found, heads.kv_rank), HeadRows(out, heads.value_dim)
        dot = spec.dot
        self.tools.launch(latent_calls.head_product(source, spec.weights.value_up, target, dot))


def narrowed(weight: torch.Tensor) -> torch.Tensor:
    """In bfloat16 where that loses nothing: half the memory, and half the bytes of each step."""
    half = weight.to(torch.bfloat16)
    return half if torch.equal(half.to(torch.float32), weight) else weight


def _slices(tokens: int) -> Iterator[slice]:
    for first in range(0, tokens, SLICE_TOKENS):
        yield slice(first, min(first + SLICE_TOKENS, tokens))
