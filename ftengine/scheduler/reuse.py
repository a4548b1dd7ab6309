"""What running sequences share with what was computed before; pure.

Stands between the scheduler, which says when a sequence begins, goes on and ends, and the prefix
tree, which says what is known. Data moves by copies that are queued here and done by the runner, in
order, before the next step is computed. What the tree gives up is parked, where that is set, and
comes back when a prompt leads there.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

from ftengine.cache.policy.anchors import choose_anchors
from ftengine.cache.policy.pages import PAGE_TOKENS, PageAllocator, pages_for
from ftengine.cache.policy.parked import Found, ParkedTexts, Reading
from ftengine.cache.policy.radix import Match, Node, RadixTree, Tokens
from ftengine.scheduler.batch import Work
from ftengine.scheduler.sequence import Sequence

_PART_OF_SLOTS = 2
"""One prompt may take one part in so many of the checkpoints; the rest stays with others."""
_AT_ONCE = 64
"""Pages parked between two looks at the time."""
_AHEAD_PART = 4
"""One part in so many of the device's pages and checkpoints are free, or parked ahead."""


class Copy(NamedTuple):
    """kind "page": one KV page to another; "state": one slot of the state pool to another.

    "park_page", "park_state": a page or a slot to a row of host memory; "return_page",
    "return_state": such a row, or what was read under a number below -1, to a page or a slot.
    """

    kind: str
    source: int
    target: int


@dataclass(frozen=True)
class ReuseLimits:
    """enabled: look up and keep prefixes. num_checkpoints: slots from first_slot on.

    num_checkpoints 0 with stateful: nothing can be reused, since no state could be gone back to.
    """

    enabled: bool = True
    stateful: bool = False
    num_checkpoints: int = 0
    first_slot: int = 0

    @property
    def active(self) -> bool:
        """Whether anything is ever reused."""
        return self.enabled and (not self.stateful or self.num_checkpoints > 0)


NO_REUSE = ReuseLimits(enabled=False)


@dataclass
class ReuseCounters:
    """Since the start. Units: tokens.

    looked_up: of prompts that could have been reused; hit: those that were. recomputed: computed
    though they had been computed before and were still known, or lost to a preemption.
    """

    looked_up: int = 0
    hit: int = 0
    recomputed: int = 0


class Reuse:
    """Pages, checkpoints and the tree, as the scheduler uses them."""

    def __init__(
        self, pages: PageAllocator, limits: ReuseLimits, parked: ParkedTexts | None = None
    ) -> None:
        self.limits = limits
        self.parked = parked if limits.active else None
        self.counters = ReuseCounters()
        slots = limits.num_checkpoints if limits.active and limits.stateful else 0
        self.tree = RadixTree(pages, slots, limits.first_slot)
        self._pages = pages
        self._room = max(slots // _PART_OF_SLOTS, 1)
        self._copies: list[Copy] = []
        self._readings: dict[Sequence, Reading] = {}
        if self.parked is not None:
            self.tree.evictions = _Parks(self.parked, self._copies)

    @property
    def num_available(self) -> int:
        """Pages that can be had without preempting anybody."""
        return self._pages.num_free + self.tree.num_evictable

    def take_copies(self) -> list[Copy]:
        """The copies queued since the last call, to be done in this order."""
        found = list(self._copies)
        self._copies.clear()
        return found

    def allocate(self, count: int) -> list[int] | None:
        """Take pages; what is cached and unused longest gives way. None: all or nothing."""
        if count > self.num_available:
            return None
        self.tree.evict(count - self._pages.num_free)
        return self._pages.allocate(count)

    def begin(self, sequence: Sequence, *, alone: bool) -> bool:
        """Give a sequence what is known of it. False, and nothing changed: it has to wait.

        For room for the rest, or until what is known of it was read from files. alone: it may not.
        """
        if not self._reuses(sequence):
            room = pages_for(len(sequence.tokens) + 1) <= self.num_available
            return alone or room
        reading = self._readings.get(sequence)
        if reading is not None and not (alone or reading.is_done):
            return False
        match = self.tree.acquire(sequence.salt, sequence.tokens, len(sequence.tokens) - 1)
        shared = match.node.depth // PAGE_TOKENS
        missing = pages_for(len(sequence.tokens) + 1) - shared
        if not alone and (missing > self.num_available or self._must_read(sequence, match)):
            self.tree.release(match.node)
            return False
        match = self._bring_back(sequence, match)
        self._start(sequence, match)
        self._count(sequence, match)
        return True

    def may_share(self, sequence: Sequence, leader: Sequence) -> bool:
        """Whether one may go on from what the other computes."""
        return self._reuses(sequence) and self._keeps(leader) and sequence.salt == leader.salt

    def restart(self, sequence: Sequence) -> None:
        """Look again: an older sequence has computed more of the same text since."""
        before = sequence.num_computed
        self._give_back(sequence)
        match = self.tree.acquire(sequence.salt, sequence.tokens, len(sequence.tokens) - 1)
        self._start(sequence, match)
        if sequence.preemptions == 0:
            gained = min(sequence.num_computed, sequence.num_prompt) - before
            sequence.num_cached += gained
            self.counters.hit += gained

    def saves(self, sequence: Sequence, end: int) -> tuple[tuple[int, int], ...]:
        """(position, slot) of states to keep inside the next piece of work, which ends at `end`."""
        found: list[tuple[int, int]] = []
        for at in sorted({*sequence.anchors, *sequence.asked}):
            if sequence.num_computed < at < end:
                slot = self.tree.take_slot()
                if slot is not None:
                    found.append((at, slot))
                    sequence.saved.append((at, slot))
        return tuple(found)

    def computed(self, work: Work) -> None:
        """A step has computed this; the sequence's counts are up to date."""
        sequence, end = work.sequence, work.start + work.num_tokens
        if not self._keeps(sequence):
            return
        if self.limits.stateful and self._is_anchor(sequence, end):
            self._save(sequence, end)
        if work.start < sequence.num_prompt or sequence.saved:
            self._insert(sequence)

    def keep(self, sequence: Sequence) -> None:
        """A sequence leaves: all that it has computed stays known."""
        if not self._keeps(sequence) or not sequence.num_computed:
            return
        self._insert(sequence)
        if self.limits.stateful and sequence.state_slot >= 0:
            done = sequence.tokens[: sequence.num_computed]
            assert sequence.lease is not None
            if not self.tree.has_checkpoint(sequence.lease, done):
                self._save(sequence, sequence.num_computed)
                self._insert(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take everything back that a sequence holds here."""
        self._give_back(sequence)
        reading = self._readings.pop(sequence, None)
        if reading is not None:
            reading.cancel()
        for _, slot in sequence.saved:
            self.tree.give_slot(slot)
        sequence.saved = []

    def park(self, go_on: Callable[[], bool]) -> None:
        """Park all that no running sequence uses, to be done by the copies queued.

        What this pushes out of host memory, which was unused longest, goes to files while `go_on`.
        """
        assert self.parked is not None, "nothing is parked"
        while self.tree.evict(_AT_ONCE):
            self.parked.writes_files = self.parked.writes_files and go_on()
        self.parked.writes_files = True

    def park_ahead(self) -> bool:
        """Park some of what will be evicted next, which stays where it is until then; while idle.

        So that the step that needs its place has nothing to copy. False: it is all parked.
        """
        if self.parked is None:
            return False
        tree, parks, queued = self.tree, _Parks(self.parked, self._copies), len(self._copies)
        pages = min(self._pages.num_pages, self.parked.limits.page_rows) // _AHEAD_PART
        slots = min(self.limits.num_checkpoints, self.parked.limits.state_rows) // _AHEAD_PART
        for node in tree.next_evicted(pages - self._pages.num_free):
            if len(self._copies) < queued + _AT_ONCE and not self.parked.has_page(node):
                parks.page(node)
        for node, tail, slot in tree.next_dropped(slots):
            if len(self._copies) < queued + _AT_ONCE and not self.parked.has_state(node, tail):
                parks.state(node, tail, slot)
        return len(self._copies) > queued

    def forget(self) -> None:
        """Drop all that no running sequence uses; what is parked already stays."""
        self.tree.forget()

    def check_integrity(self, running: Items[Sequence]) -> None:
        """Assert that the tree, the pages and the sequences tell the same story."""
        self.tree.check_integrity()
        self._pages.check_integrity()
        held = {page for item in running for page in item.pages}
        cached = {node.page for node in self.tree.nodes()}
        used = self._pages.num_pages - self._pages.num_free
        assert len(held | cached) == used, "pages leaked"
        for sequence in running:
            path = sequence.lease.path() if sequence.lease else []
            pages = [node.page for node in path]
            assert pages == sequence.pages[: len(pages)], "a sequence left the way it pinned"
        pinned = {node.page for node in self.tree.nodes() if node.pins}
        assert held & cached == pinned & held
        assert pinned <= held

    def _reuses(self, sequence: Sequence) -> bool:
        return self._keeps(sequence) and not sequence.request.prompt_logprobs

    def _keeps(self, sequence: Sequence) -> bool:
        return self.limits.active and not sequence.embeds

    def _start(self, sequence: Sequence, match: Match) -> None:
        path = match.node.path()
        pages = [node.page for node in path]
        self._pages.share(pages)
        if match.num_tokens > match.node.depth:
            fresh = self.allocate(1)
            if fresh is None:  # only a pool of one context: the whole of it is this very text
                self._pages.release(pages)
                self.tree.release(match.node)
                match = self.tree.acquire(sequence.salt, sequence.tokens, 0)
                pages, fresh = [], []
            else:
                self._copies.append(Copy("page", match.partial, fresh[0]))
            pages += fresh
        sequence.pages = pages
        sequence.lease = match.node
        sequence.num_computed = sequence.joined_at = match.num_tokens
        if match.checkpoint >= 0 and match.num_tokens:
            self._copies.append(Copy("state", match.checkpoint, sequence.state_slot))
        if self.limits.stateful:
            sequence.anchors = choose_anchors(
                sequence.request.anchors, match.num_tokens, sequence.num_prompt, self._room
            )

    def _must_read(self, sequence: Sequence, match: Match) -> bool:
        """Whether files have to be read first, which begins now."""
        if self.parked is None or sequence in self._readings:
            return False
        tokens = tuple(sequence.tokens[:-1])
        reading = self.parked.begin_reading(sequence.salt, tokens, match)
        if reading is not None:
            self._readings[sequence] = reading
        return reading is not None

    def _bring_back(self, sequence: Sequence, match: Match) -> Match:
        """The match, or a deeper one by what is parked."""
        if self.parked is None:
            return match
        salt, tokens = sequence.salt, tuple(sequence.tokens[:-1])
        found = self.parked.find(salt, tokens, match, self._readings.pop(sequence, None))
        if found is None:
            return match
        lease = self.tree.pin(salt, tokens)
        fresh = sorted(self.allocate(min(len(found.pages), self.num_available)) or [])
        slot = None if found.state is None else self.tree.take_slot()
        lease = self._return_pages(lease, found, fresh)
        if slot is not None and found.state is not None:
            self._return_state(lease, tokens, found, slot)
        self.parked.let_go()
        deeper = self.tree.acquire(salt, tokens, len(tokens), lease)
        self.tree.release(lease)
        self.tree.release(match.node)
        self.parked.returned_tokens += max(deeper.num_tokens - match.num_tokens, 0)
        return deeper

    def _return_pages(self, lease: Node, found: Found, fresh: list[int]) -> Node:
        """Copy to the pages given, as far as they go. Returns the lease on the way so far."""
        rows = (row for _, row in found.pages)
        self._copies += map(Copy, repeat("return_page"), rows, fresh)
        pairs = zip(found.pages, fresh, strict=False)
        pages = [(kept.node.tokens, page, kept.node) for (kept, _), page in pairs]
        return self.tree.graft(lease, pages)

    def _return_state(self, lease: Node, tokens: Tokens, found: Found, slot: int) -> None:
        assert found.state is not None
        kept, row = found.state
        if lease.depth < kept.start:  # not all of the pages before it found room
            self.tree.give_slot(slot)
            return
        self._copies.append(Copy("return_state", row, slot))
        self.tree.attach(lease, tokens[: kept.end], slot)

    def _count(self, sequence: Sequence, match: Match) -> None:
        if sequence.preemptions == 0:
            sequence.num_cached = sequence.num_computed
            self.counters.looked_up += sequence.num_prompt
            self.counters.hit += sequence.num_computed
            self.counters.recomputed += max(match.num_known - sequence.num_computed, 0)
        else:
            self.counters.recomputed += max(sequence.num_lost - sequence.num_computed, 0)

    def _is_anchor(self, sequence: Sequence, end: int) -> bool:
        if end <= sequence.num_prompt:
            return end in sequence.anchors or end in sequence.asked
        return sequence.tokens[end - 1] in sequence.request.anchor_token_ids

    def _save(self, sequence: Sequence, position: int) -> None:
        slot = self.tree.take_slot()
        if slot is not None:
            self._copies.append(Copy("state", sequence.state_slot, slot))
            sequence.saved.append((position, slot))

    def _insert(self, sequence: Sequence) -> None:
        done = sequence.tokens[: sequence.num_computed]
        lease = sequence.lease
        if lease is None:  # it was not looked up, because all of its prompt had to be computed
            lease = self.tree.acquire(sequence.salt, (), 0).node
        lease = sequence.lease = self.tree.extend(lease, done, sequence.pages)
        for at, slot in sequence.saved:
            if at <= sequence.num_computed:
                self.tree.attach(lease, done[:at], slot)
            else:  # the step that would have written it is not run
                self.tree.give_slot(slot)
        sequence.saved = []

    def _give_back(self, sequence: Sequence) -> None:
        self._pages.release(sequence.pages)
        sequence.pages = []
        sequence.num_computed = 0
        if sequence.lease is not None:
            self.tree.release(sequence.lease)
            sequence.lease = None


class _Parks:
    """Queues a copy for what the tree gives up."""

    def __init__(self, parked: ParkedTexts, copies: list[Copy]) -> None:
        self._parked = parked
        self._copies = copies

    def page(self, node: Node) -> None:
        row = self._parked.page_evicted(node)
        if row is not None:
            self._copies.append(Copy("park_page", node.page, row))

    def state(self, node: Node, tail: Tokens, slot: int) -> None:
        row = self._parked.state_evicted(node, tail)
        if row is not None:
            self._copies.append(Copy("park_state", slot, row))
