"""The bytes of parked pages and states: rows of host memory, and what goes to files and back.

What is parked, and which of it gives way, is decided in policy/parked.py. The copies between the
device and host memory are queued by the scheduler and done here, in its order, before the next
step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.cache.kv_pool import Allocate, KvPool
from ftengine.cache.park_files import Head, ParkFolder, file_bytes
from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.cache.policy.parked import ParkedTexts, ParkLimits
from ftengine.cache.policy.parked_tree import Kept, ParkedFile
from ftengine.cache.state_pool import StatePool

log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Pages copied together: what they take of one layer fits in a processor's cache."""
_READY_BYTES = 32 << 20
"""Rows that were never used and are touched beforehand, so that parking waits for no page fault."""
_SYSTEM_PAGE = 4096
_STATES_PART = 2
"""Where a model has states they get one part in so many of host memory, and pages the rest."""


@dataclass(frozen=True)
class ParkSizes:
    """Units: bytes, of a page over all layers and of a state; state_bytes 0 = it has none."""

    page_bytes: int
    state_bytes: int = 0

    def limits(self, host_bytes: int, disk_bytes: int) -> ParkLimits:
        """What fits in so much memory and so much of a disk."""
        for_states = host_bytes // _STATES_PART if self.state_bytes else 0
        states = for_states // self.state_bytes if self.state_bytes else 0
        pages = (host_bytes - for_states) // max(self.page_bytes, 1)
        return ParkLimits(pages, states, disk_bytes)


@dataclass(frozen=True)
class ParkStats:
    """What is parked. Units: bytes, tokens that came back since the start."""

    parked_bytes: int
    parked_limit_bytes: int
    parked_file_bytes: int
    parked_file_limit_bytes: int
    returned_tokens: int


class Queued(Protocol):
    """A copy as the scheduler queues it."""

    @property
    def source(self) -> int: ...

    @property
    def target(self) -> int: ...


class Parking:
    """Host memory and the folder of one engine. texts: what lies where.

    identity: of the model and of all that its numbers depend on.
    """

    def __init__(
        self,
        sizes: ParkSizes,
        limits: ParkLimits,
        identity: str,
        allocate: Allocate,
        folder: ParkFolder | None = None,
    ) -> None:
        self.sizes = sizes
        self.limits = limits
        self._identity = identity
        self._folder = folder
        self._pages = _rows(limits.page_rows, sizes.page_bytes, allocate)
        self._states = _rows(limits.state_rows, sizes.state_bytes, allocate)
        self._read: dict[int, torch.Tensor] = {}
        self._next_read = -2
        self._settle: Callable[[], None] = lambda: None
        self._touched = [0, 0]
        self.texts = ParkedTexts(limits, sizes.state_bytes > 0, None if folder is None else self)

    @property
    def has_folder(self) -> bool:
        """Whether anything may go to files."""
        return self._folder is not None

    def stats(self) -> ParkStats:
        """What is parked now."""
        texts, sizes, limits = self.texts, self.sizes, self.limits
        page, state = sizes.page_bytes, sizes.state_bytes
        return ParkStats(
            parked_bytes=texts.num_pages * page + texts.num_states * state,
            parked_limit_bytes=limits.page_rows * page + limits.state_rows * state,
            parked_file_bytes=texts.file_bytes,
            parked_file_limit_bytes=limits.file_bytes if self.has_folder else 0,
            returned_tokens=texts.returned_tokens,
        )

    def settle_with(self, settle: Callable[[], None]) -> None:
        """settle: does all copies that are queued; called before rows are looked at."""
        self._settle = settle

    def adopt_files(self) -> int:
        """Take over what an engine of before has left in the folder. Returns the files."""
        if self._folder is None:
            return 0
        count = 0
        for rank, opened in self._folder.scan():
            head = opened.head
            file = ParkedFile(rank, opened.num_bytes)
            self.texts.add_file(file, head.salt, opened.tokens, head.first, head.states)
            count += 1
        return count

    def write_all(self, go_on: Callable[[], bool]) -> bool:
        """Put all that is parked in files. False: time or room ended before."""
        self._settle()
        return self._folder is not None and self.texts.write_all(go_on)

    def close(self) -> None:
        """Give the folder up."""
        if self._folder is not None:
            self._folder.close()

    def move(
        self, kind: str, copies: Sequence[Queued], pool: KvPool, states: StatePool | None
    ) -> None:
        """Do queued copies of one kind, in order."""
        with torch.inference_mode():
            if kind in ("park_page", "return_page"):
                for at in range(0, len(copies), _AT_ONCE):
                    self._move_pages(kind, copies[at : at + _AT_ONCE], pool)
                return
            assert states is not None, "a model without states has none to copy"
            for copy in copies:
                if kind == "park_state":
                    self._states[copy.target].copy_(states.row(copy.source).view(torch.uint8))
                else:
                    states.row(copy.target).view(torch.uint8).copy_(self._row(copy.source, True))

    def size(self, items: Sequence[Kept]) -> int:
        """As Disk has it."""
        return file_bytes(items[-1].end, len(items), self._head(items).rows_bytes)

    def write(self, items: Sequence[Kept], rank: int) -> ParkedFile | None:
        """As Disk has it."""
        assert self._folder is not None
        self._settle()
        last = items[-1]
        tokens = (*last.node.text(), *last.tail)
        rows = [(self._states if kept.tail else self._pages)[kept.row] for kept in items]
        num_bytes = self._folder.write(rank, self._head(items), tokens, rows)
        return None if num_bytes is None else ParkedFile(rank, num_bytes)

    def read(self, file: ParkedFile, items: Sequence[Kept]) -> list[int] | None:
        """As Disk has it."""
        assert self._folder is not None
        rows = self._folder.read(file.rank, [kept.place for kept in items])
        if rows is None:
            return None
        numbers = []
        for row in rows:
            self._read[self._next_read] = row
            numbers.append(self._next_read)
            self._next_read -= 1
        return numbers

    def remove(self, file: ParkedFile) -> None:
        """As Disk has it."""
        assert self._folder is not None
        self._folder.remove(file.rank)

    def make_ready(self) -> None:
        """Touch memory of the rows that come next; while nothing else is to be done."""
        next_rows = self.texts.never_used()
        for kind, rows in enumerate((self._pages, self._states)):
            count = 1 + _READY_BYTES // max(rows.shape[1], 1)
            first = max(self._touched[kind], next_rows[kind])
            end = min(next_rows[kind] + count, rows.shape[0])
            if first < end:
                with torch.inference_mode():
                    rows[first:end, ::_SYSTEM_PAGE] = 0
                self._touched[kind] = end

    def settled(self) -> None:
        """No copies are queued: what was read of files and is not waited for may go."""
        if not self.texts.is_holding:
            self._read.clear()

    def _move_pages(self, kind: str, copies: Sequence[Queued], pool: KvPool) -> None:
        if kind == "park_page":
            pages, rows = [c.source for c in copies], [c.target for c in copies]
            pool.read_into(pages, self._pages, rows)
            return
        in_rows = [copy for copy in copies if copy.source >= 0]
        targets, sources = [c.target for c in in_rows], [c.source for c in in_rows]
        pool.write_pages(targets, self._pages, sources)
        read = [copy for copy in copies if copy.source < 0]
        if read:
            data = torch.stack([self._row(copy.source, False) for copy in read])
            pool.write_pages([copy.target for copy in read], data)

    def _row(self, number: int, is_state: bool) -> torch.Tensor:
        if number < 0:
            return self._read[number]
        return (self._states if is_state else self._pages)[number]

    def _head(self, items: Sequence[Kept]) -> Head:
        first, last = items[0], items[-1]
        states = tuple(kept.end for kept in items if kept.tail)
        num_pages = len(items) - len(states)
        return Head(
            identity=self._identity,
            salt=last.node.salt,
            num_tokens=last.end,
            first=first.start // PAGE_TOKENS if num_pages else -(-last.end // PAGE_TOKENS),
            num_pages=num_pages,
            states=states,
            page_bytes=self.sizes.page_bytes,
            state_bytes=self.sizes.state_bytes,
        )


def _rows(count: int, width: int, allocate: Allocate) -> torch.Tensor:
    """Shape: uint8 [count, width]; the system hands the memory out as it is first written."""
    if not count * width:
        return torch.zeros(count, width, dtype=torch.uint8, device="cpu")
    return allocate(count * width).view(count, width)
