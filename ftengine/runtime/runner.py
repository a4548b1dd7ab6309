"""Batch -> tensors -> logits. Knows pages and positions, nothing of requests' fates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass
from operator import attrgetter

import torch

from ftengine.cache.kv_pool import KvPool
from ftengine.cache.parking import Parking
from ftengine.cache.policy.pages import pages_for
from ftengine.cache.state_pool import StatePool
from ftengine.kernels.dispatch import Kernels
from ftengine.kernels.native import NativeKernels
from ftengine.kernels.row_copies import CopyRows, torch_copy_rows
from ftengine.layers.context import Gather, Workspace
from ftengine.models.decoder import Decoder
from ftengine.models.widths import HEAD_ROWS
from ftengine.plan.replay import StepPlans
from ftengine.protocol import GenerateRequest
from ftengine.runtime.batching import HostIndices, Indices, StepInputs
from ftengine.sampling.partial import Logits
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.reuse import Copy
from ftengine.scheduler.sequence import Sequence


@dataclass(frozen=True)
class RunnerLimits:
    """Units: tokens; max_sequences in one step."""

    context_tokens: int
    max_sequences: int
    step_tokens: int


@dataclass(frozen=True)
class PromptLogits:
    """Logits of consecutive prompt tokens of one sequence.

    Shape: logits float32 [n, vocab_size]; row i belongs to token `start + i`.
    """

    sequence: Sequence
    start: int
    logits: torch.Tensor


@dataclass(frozen=True)
class HiddenRows:
    """Hidden states after the last norm of consecutive tokens of one sequence.

    Shape: rows float32 [n, hidden]; row i belongs to token `start + i`; valid until the next step.
    """

    sequence: Sequence
    start: int
    rows: torch.Tensor


@dataclass(frozen=True)
class StepRows:
    """What a step gave beside the logits that choose tokens. Shape: logits as of Runner.run."""

    prompts: list[PromptLogits]
    hidden: list[HiddenRows]
    logits: torch.Tensor


@dataclass(frozen=True)
class StepMemory:
    """What steps work in. Shape: logits float32 [head_rows, vocab_size].

    gather: see StepContext.
    """

    workspace: Workspace
    indices: Indices
    logits: torch.Tensor
    gather: Gather | None = None


class Runner:
    """Runs steps of one decoder over one KV pool, and the states of recurrent layers."""

    def __init__(
        self,
        decoder: Decoder,
        pool: KvPool,
        limits: RunnerLimits,
        states: StatePool | None = None,
        memory: StepMemory | None = None,
    ) -> None:
        self._decoder = decoder
        self._pool = pool
        self._states = states
        self._limits = limits
        memory = memory or _host_memory(decoder, limits)
        self._inputs = StepInputs(
            memory.workspace,
            pool,
            limits.max_sequences,
            limits.context_tokens,
            states,
            memory.indices,
            memory.gather,
        )
        self._logits = memory.logits
        self.parking: Parking | None = None
        kernels = decoder.head.kernels
        self._plans: StepPlans | None = None
        self._copy_rows: CopyRows = torch_copy_rows
        if isinstance(kernels, NativeKernels):
            self._plans = StepPlans(decoder, kernels)
            self._copy_rows = kernels.copy_rows

    @property
    def states(self) -> StatePool | None:
        """States of recurrent layers; None where the model has none."""
        return self._states

    @property
    def pool(self) -> KvPool:
        """The KV pool in use."""
        return self._pool

    @property
    def kernels(self) -> Kernels:
        """What computes the layers."""
        return self._decoder.head.kernels

    @property
    def hidden_size(self) -> int:
        """Numbers in a hidden state."""
        return self._decoder.buffer_shape.hidden

    @property
    def step_described(self) -> str:
        """How decode steps are computed, in words."""
        return "python" if self._plans is None else self._plans.described()

    def use_pool(self, pool: KvPool) -> None:
        """Steps from now on use another pool; between steps only."""
        self._pool = pool
        self._inputs.use_pool(pool)
        if self._plans is not None:
            self._plans.forget()

    def replace_pool(self, pool: KvPool) -> None:
        """As use_pool, where the old one is of no more use."""
        old = self._pool
        self.use_pool(pool)
        self._release(old)

    def close(self) -> None:
        """Give back what is not given back by itself; after the last step."""

    def copy(self, copies: Iterable[Copy]) -> None:
        """Move what the scheduler wants moved, in this order, before the next step."""
        for kind, group in itertools.groupby(copies, key=attrgetter("kind")):
            if kind == "page":
                for item in group:
                    self._pool.copy_page(item.source, item.target, self._copy_rows)
            elif kind == "state":
                assert self._states is not None, "a model without states has none to copy"
                for item in group:
                    self._states.copy(item.source, item.target, self._copy_rows)
            else:
                assert self.parking is not None, "nothing was parked"
                self.parking.move(kind, list(group), self._pool, self._states, self._copy_rows)
        if self.parking is not None:
            self.parking.settled()

    def run(self, batch: Batch) -> Logits:
        """Compute a step. Returns the logits that choose tokens, in the order of batch.work.

        Shape: float32 [number of sampling works, vocab_size], valid until the next call.
        """
        rows = sampling_rows(batch.work)
        only_decodes = len(rows) == batch.num_tokens
        return self._head(self._forward(batch.work, None if only_decodes else rows))

    def run_with_rows(self, batch: Batch, wanting: Items[Work]) -> StepRows:
        """Like run, and also every row of the works in `wanting`.

        Of sequences that embed these are the hidden states, of others the logits: copies, made
        HEAD_ROWS at a time.
        """
        hidden = self._forward(batch.work, None)
        prompts: list[PromptLogits] = []
        texts: list[HiddenRows] = []
        at = 0
        for item in batch.work:
            rows = hidden[at : at + item.num_tokens]
            at += item.num_tokens
            if item not in wanting:
                continue
            if item.sequence.embeds:
                texts.append(HiddenRows(item.sequence, item.start, self._on_host(rows)))
                continue
            for first, part in _blocks(rows):
                logits = self._head(part).clone()
                prompts.append(PromptLogits(item.sequence, item.start + first, logits))
        logits = self._head(self._chosen(hidden, sampling_rows(batch.work)))
        return StepRows(prompts, texts, logits)

    def logits(self, token_ids: Iterable[int], chunk_tokens: int = 0) -> torch.Tensor:
        """Logits of every token of one text, computed alone, in pages of their own.

        For tests and benchmarks: no sequence may be running, since state slot 0 is used.
        chunk_tokens 0 = the step limit.
        Shape: float32 [len(token_ids), vocab_size].
        """
        tokens = list(token_ids)
        chunk = chunk_tokens or self._limits.step_tokens
        sequence = lone_sequence(tokens)
        parts: list[torch.Tensor] = []
        pool, own = self._pool, self._pool.like(len(sequence.pages))
        self.use_pool(own)
        try:
            for start in range(0, len(tokens), chunk):
                count = min(chunk, len(tokens) - start)
                hidden = self._forward((Work(sequence, start, count, samples=False),), None)
                parts += [self._head(part).clone() for _, part in _blocks(hidden)]
        finally:
            self.use_pool(pool)
            self._release(own)
        return torch.cat(parts)

    def _forward(self, work: tuple[Work, ...], wanted: list[int] | None) -> torch.Tensor:
        with torch.inference_mode():
            context = self._inputs.fill(work, wanted)
            if self._plans is not None and self._plans.covers(context):
                return self._plans.forward(self._inputs.token_ids, context)
            return self._decoder.forward(self._inputs.token_ids, context)

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.shape[0] == 0:
            return self._logits[:0]
        with torch.inference_mode():
            return self._decoder.logits(hidden, self._logits[: hidden.shape[0]])

    def _chosen(self, hidden: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """Rows of what _forward gave, as _head takes them."""
        return hidden[rows].contiguous()

    def _on_host(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of what _forward gave, for others to read."""
        return hidden

    def _release(self, pool: KvPool) -> None:
        """A pool that nobody uses any more: the system takes it back by itself."""


def head_rows(limits: RunnerLimits) -> int:
    """Most rows of logits that exist at a time."""
    return max(HEAD_ROWS, limits.max_sequences)


def _host_memory(decoder: Decoder, limits: RunnerLimits) -> StepMemory:
    return StepMemory(
        Workspace(decoder.buffer_shape, limits.step_tokens),
        HostIndices(),
        torch.zeros(head_rows(limits), decoder.vocab_size),
    )


def sampling_rows(work: Items[Work]) -> list[int]:
    """The last row of each work that chooses a token."""
    rows: list[int] = []
    at = 0
    for item in work:
        at += item.num_tokens
        if item.samples:
            rows.append(at - 1)
    return rows


def _blocks(rows: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    for first in range(0, rows.shape[0], HEAD_ROWS):
        yield first, rows[first : first + HEAD_ROWS]


def lone_sequence(tokens: list[int]) -> Sequence:
    """A sequence that has an engine to itself: the first pages and the first state slot."""
    return Sequence(
        request=GenerateRequest("logits", tuple(tokens)),
        order=0,
        arrival_s=0.0,
        limit_tokens=len(tokens),
        stop_ids=frozenset(),
        tokens=tokens,
        pages=list(range(pages_for(len(tokens)))),
        state_slot=0,
    )
