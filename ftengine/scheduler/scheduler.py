"""Continuous batching: who waits, who runs, and what the next step computes. Pure; times are given.

Rules, in order:
- every running sequence that only lacks its last token decodes, one token a step, so that a long
  prompt delays nobody by more than one chunk;
- beside them prompts get a share of the time (share.py), and of the step's token budget what is
  left: first short ones (at most SHORT_TOKENS still to compute) in order of arrival, up to half of
  the budget while a longer prompt waits, then one chunk of the oldest longer prompt, which
  therefore always advances;
- a waiting sequence starts, in order of arrival, when there is a place and, unless it would run
  alone, when the pool has room for its whole prompt; it starts after what is known of it already
  (reuse.py);
- a prompt waits while an older one that begins alike is computing their common beginning;
- without a free page, what is cached and unused longest gives way; then the youngest running
  sequence younger than the one in need is preempted: its pages go back, it waits at the front of
  the queue and is computed again later, from where the cache still knows it. A sequence that finds
  nobody younger sits this step out. The oldest always gets through.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Collection
from collections.abc import Sequence as Items

from ftengine.cache.policy.pages import PAGE_TOKENS, PageAllocator, pages_for
from ftengine.cache.policy.parked import ParkedTexts
from ftengine.errors import CapacityError, RequestError
from ftengine.protocol import GenerateRequest, Sampling
from ftengine.scheduler.batch import Batch, Work
from ftengine.scheduler.reuse import NO_REUSE, Copy, Reuse, ReuseLimits
from ftengine.scheduler.sequence import (
    FINISHED,
    RUNNING,
    WAITING,
    Sequence,
    common_tokens,
)
from ftengine.scheduler.share import PrefillShare

SHORT_TOKENS = 128


@dataclasses.dataclass(frozen=True)
class SchedulerLimits:
    """Units: tokens; max_waiting counts requests in the queue. prefill_share: as PrefillShare."""

    context_tokens: int
    max_sequences: int
    step_tokens: int = 512
    max_waiting: int = 512
    prefill_share: float = 1.0

    def __post_init__(self) -> None:
        for name in ("context_tokens", "max_sequences", "step_tokens", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more")


class Scheduler:
    """Owner of all sequences and of the page allocator. One caller, one thread."""

    def __init__(
        self,
        limits: SchedulerLimits,
        pages: PageAllocator,
        eos_ids: Collection[int] = (),
        reuse: ReuseLimits = NO_REUSE,
        parked: ParkedTexts | None = None,
    ) -> None:
        if pages.num_pages < pages_for(limits.context_tokens):
            raise CapacityError(
                f"{pages.num_pages} KV pages hold less than one context of "
                f"{limits.context_tokens} tokens; ask for a smaller context or more KV memory"
            )
        self._limits = limits
        self._pages = pages
        self.reuse = Reuse(pages, reuse, parked)
        self._share = PrefillShare(limits.prefill_share)
        self._started_s = 0.0
        self._eos_ids = frozenset(eos_ids)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self._state_slots = list(range(limits.max_sequences - 1, -1, -1))
        self._arrivals = 0
        self.num_preemptions = 0

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end every reply."""
        return self._eos_ids

    @property
    def num_running(self) -> int:
        """Sequences that hold a place."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether a step could do anything."""
        return bool(self._running or self._waiting)

    def check(self, request: GenerateRequest, vocab_size: int) -> None:
        """Refuse a request that could never run. Raises: RequestError naming the limit."""
        num_prompt = len(request.token_ids)
        limit = self._limits.context_tokens
        if num_prompt >= limit:
            raise RequestError(
                f"the prompt has {num_prompt} tokens and the context holds {limit}, one of them "
                f"for the answer; shorten the prompt or load the model with a larger context",
                code="context_length_exceeded",
            )
        _check_ids("token_ids", request.token_ids, vocab_size)
        _check_sampling(request.sampling, vocab_size)

    def check_input(self, token_ids: Items[int], vocab_size: int) -> None:
        """The same for a text whose hidden states are wanted. Raises: RequestError."""
        limit = self._limits.context_tokens
        if len(token_ids) > limit:
            raise RequestError(
                f"an input has {len(token_ids)} tokens and the context holds {limit}; shorten it "
                f"or load the model with a larger context",
                code="context_length_exceeded",
            )
        _check_ids("inputs", token_ids, vocab_size)

    def add(self, request: GenerateRequest, now_s: float, *, embeds: bool = False) -> Sequence:
        """Queue a request that passed `check`, or with `embeds` an input that passed `check_input`.

        Raises: RequestError "queue_full", or "duplicate_request" for an id in flight.
        """
        if request.request_id in self._by_id:
            raise RequestError(
                f"request_id {request.request_id!r} is in use; choose a new one",
                code="duplicate_request",
            )
        if len(self._waiting) >= self._limits.max_waiting:
            raise RequestError(
                f"{len(self._waiting)} requests wait already and the queue holds no more; "
                f"try again later",
                code="queue_full",
                retryable=True,
            )
        sequence = self._new_sequence(request, now_s, embeds)
        self._waiting.append(sequence)
        self._by_id[request.request_id] = sequence
        return sequence

    def find(self, request_id: str) -> Sequence | None:
        """The live sequence of a request."""
        return self._by_id.get(request_id)

    def sequences(self) -> tuple[Sequence, ...]:
        """All live sequences, running ones first."""
        return (*self._running, *self._waiting)

    def finish(self, sequence: Sequence, reason: str) -> None:
        """End a sequence at any stage and give its pages back. Ending it twice does nothing.

        Unless it failed, what it has computed goes to the prefix cache.
        """
        if sequence.state == FINISHED:
            return
        if sequence.state == RUNNING:
            self._running.remove(sequence)
            if reason != "error":
                self.reuse.keep(sequence)
        else:
            self._waiting.remove(sequence)
        self._release(sequence)
        sequence.state = FINISHED
        sequence.reason = reason
        del self._by_id[sequence.request.request_id]

    def expired(self, now_s: float) -> list[Sequence]:
        """Live sequences whose deadline has passed; the caller ends them."""
        return [
            sequence
            for sequence in self.sequences()
            if sequence.deadline_s is not None and sequence.deadline_s <= now_s
        ]

    def take_copies(self) -> list[Copy]:
        """Copies to be done, in this order, before the next step or before pages are looked at."""
        return self.reuse.take_copies()

    def next_batch(self, now_s: float) -> Batch | None:
        """Choose the next step and take the pages it needs. None when nothing can run.

        take_copies comes next, whatever the answer.
        """
        self._started_s = now_s
        self._admit()
        work: list[Work] = []
        budget = self._limits.step_tokens
        for sequence in [item for item in self._running if not item.is_prefilling]:
            if budget and self._take(sequence, 1, work):
                budget -= 1
        self._prefill(budget, work)
        # a sequence put in early may have been preempted by an older one put in later
        kept = tuple(item for item in work if item.sequence.state == RUNNING)
        for item in kept:
            if item.sequence.first_step_s is None:
                item.sequence.first_step_s = now_s
        return Batch(kept) if kept else None

    def commit(
        self,
        batch: Batch,
        tokens: dict[str, int],
        now_s: float,
        complete: Collection[str] = (),
    ) -> list[Sequence]:
        """Record a finished step: `tokens` holds the chosen token of each sampling sequence.

        complete: requests whose constraint lets nothing follow that token.
        Returns the sequences that ended with it, with their reason set.
        """
        ended: list[Sequence] = []
        num_decodes = sum(not item.sequence.is_prefilling for item in batch.work)
        prompt = batch.num_tokens - num_decodes
        self._share.took(now_s - self._started_s, num_decodes, prompt)
        for item in batch.work:
            sequence = item.sequence
            if sequence.state != RUNNING:
                continue
            sequence.num_computed = item.start + item.num_tokens
            self.reuse.computed(item)
            if item.samples:
                request_id = sequence.request.request_id
                self._append(sequence, tokens[request_id], now_s)
                if request_id in complete and sequence.num_generated:
                    sequence.reason = "stop"
            elif sequence.embeds and not sequence.num_pending:
                sequence.reason = "embedded"
            if sequence.reason:
                self.finish(sequence, sequence.reason)
                ended.append(sequence)
        return ended

    def resize_pages(self, num_pages: int) -> dict[int, int]:
        """Change the number of KV pages between steps.

        Where it shrinks, what is cached and unused longest goes first, then the youngest sequence.
        Returns old -> new id of every page that is still held.
        Raises: CapacityError when one context would not fit; nothing is changed then.
        """
        least = pages_for(self._limits.context_tokens)
        if num_pages < least:
            raise CapacityError(
                f"{num_pages} KV pages hold less than one context of "
                f"{self._limits.context_tokens} tokens, which needs {least}; ask for more KV "
                f"memory, or load the model with a smaller context"
            )
        while (excess := self._pages.num_pages - self._pages.num_free - num_pages) > 0:
            if not self.reuse.tree.evict(excess):
                self._preempt(self._running[-1])
        held = {node.page for node in self.reuse.tree.nodes()}
        held |= {page for sequence in self._running for page in sequence.pages}
        moves = self._pages.resize(num_pages)
        for sequence in self._running:
            sequence.pages = [moves.get(page, page) for page in sequence.pages]
        self.reuse.tree.renumber(moves)
        return {page: moves.get(page, page) for page in held}

    def check_integrity(self) -> None:
        """Assert that pages, states and counts agree; for tests and idle moments."""
        self.reuse.check_integrity(self._running)
        slots = [item.state_slot for item in self._running]
        assert sorted(slots + self._state_slots) == list(range(self._limits.max_sequences))
        for sequence in self._running:
            assert sequence.state == RUNNING
            assert len(sequence.pages) >= pages_for(sequence.num_computed)
        assert all(item.state == WAITING and not item.pages for item in self._waiting)

    def _new_sequence(self, request: GenerateRequest, now_s: float, embeds: bool) -> Sequence:
        limit = self._limits.context_tokens
        if request.max_tokens >= 0:
            limit = min(limit, len(request.token_ids) + request.max_tokens)
        self._arrivals += 1
        return Sequence(
            request=request,
            order=self._arrivals,
            arrival_s=now_s,
            limit_tokens=limit,
            stop_ids=self._eos_ids | frozenset(request.stop_token_ids),
            tokens=list(request.token_ids),
            embeds=embeds,
        )

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._limits.max_sequences:
            head = self._waiting[0]
            head.state_slot = self._state_slots[-1]
            if not self.reuse.begin(head, alone=not self._running):
                head.state_slot = -1
                return
            self._state_slots.pop()
            self._waiting.popleft()
            head.state = RUNNING
            self._follow(head)
            self._running.append(head)
            self._running.sort(key=lambda item: item.order)

    def _follow(self, sequence: Sequence) -> None:
        """Find an older prompt under way whose beginning this one can share."""
        sequence.leader = None
        best = sequence.num_computed + PAGE_TOKENS - 1
        for other in self._running:
            if not other.is_prefilling or not self.reuse.may_share(sequence, other):
                continue
            common = common_tokens(sequence.tokens[:-1], other.tokens)
            if common > best and other.num_computed < common:
                best, sequence.leader = common, other
        if sequence.leader is not None:
            sequence.shared = best
            sequence.leader.asked.append(best)

    def _prompts(self) -> tuple[list[Sequence], list[Sequence]]:
        """Sequences that may compute prompt tokens in this step: short ones, long ones.

        Of the long ones only the first will. Those are left out whose leader advances in this step.
        """
        short: list[Sequence] = []
        long: list[Sequence] = []
        led: list[Sequence] = []
        for sequence in self._running:
            if not sequence.is_prefilling:
                continue
            if sequence.leader is not None:
                if not sequence.is_led:
                    self._part(sequence)
                elif sequence.leader in (*short, *long[:1], *led):
                    led.append(sequence)
                    continue
            (long if sequence.num_pending > SHORT_TOKENS else short).append(sequence)
        return short, long

    def _part(self, sequence: Sequence) -> None:
        """Stop following, and take what the leader has computed so far."""
        if sequence.leader is not None:
            sequence.leader = None
            self.reuse.restart(sequence)

    def _prefill(self, budget: int, work: list[Work]) -> None:
        short, long = self._prompts()
        pending = sum(item.num_pending for item in (*short, *long))
        budget = self._share.allowed(len(work), pending, budget)
        for_short = budget // 2 if long else budget
        for sequence in short:
            self._part(sequence)
            count = min(sequence.num_pending, for_short)
            if count and self._take(sequence, count, work):
                for_short -= count
                budget -= count
        for sequence in long:
            if not budget:
                return
            self._part(sequence)
            if self._take(sequence, min(sequence.num_pending, budget), work):
                return

    def _take(self, sequence: Sequence, count: int, work: list[Work]) -> bool:
        """Reserve pages for `count` more tokens and add the work. False: not in this step."""
        if sequence.state != RUNNING:
            return False
        end = sequence.num_computed + count
        missing = pages_for(end) - len(sequence.pages)
        if missing > 0 and not self._reserve(sequence, missing):
            return False
        samples = end == len(sequence.tokens) and not sequence.embeds
        saves = self.reuse.saves(sequence, end)
        work.append(Work(sequence, sequence.num_computed, count, samples, saves))
        return True

    def _reserve(self, sequence: Sequence, count: int) -> bool:
        while True:
            pages = self.reuse.allocate(count)
            if pages is not None:
                sequence.pages.extend(pages)
                return True
            youngest = self._running[-1]
            if youngest is sequence:
                return False
            self._preempt(youngest)

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        sequence.num_lost = sequence.num_computed
        self.reuse.keep(sequence)
        self._release(sequence)
        sequence.state = WAITING
        sequence.preemptions += 1
        self.num_preemptions += 1
        # running sequences are all older than waiting ones, so the front keeps the order
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.reuse.release(sequence)
        sequence.leader = None
        if sequence.state_slot >= 0:
            self._state_slots.append(sequence.state_slot)
            sequence.state_slot = -1

    def _append(self, sequence: Sequence, token: int, now_s: float) -> None:
        if sequence.first_token_s is None:
            sequence.first_token_s = now_s
        if len(sequence.tokens) >= sequence.limit_tokens:  # max_tokens 0: only the prompt
            sequence.reason = "length"
            return
        if token in sequence.stop_ids:
            sequence.reason, sequence.stop_token_id = "stop", token
            return
        sequence.tokens.append(token)
        if len(sequence.tokens) >= sequence.limit_tokens:
            sequence.reason = "length"


def _check_ids(name: str, token_ids: Items[int], vocab_size: int) -> None:
    highest, lowest = max(token_ids), min(token_ids)
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise RequestError(f"{name} holds {wrong}; ids of this model are 0 to {vocab_size - 1}")


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    """JSON as Python reads it may hold infinities and NaN; they would poison every filter."""
    for item in dataclasses.fields(sampling):
        value = getattr(sampling, item.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(f"sampling.{item.name} must be a finite number")
    for token_id, bias in sampling.logit_bias:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"sampling.logit_bias names token {token_id}; ids of this model are 0 to "
                f"{vocab_size - 1}"
            )
        if not math.isfinite(bias):
            raise RequestError(f"sampling.logit_bias of token {token_id} must be a finite number")
