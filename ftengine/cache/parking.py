"""The bytes of parked pages and states: rows of host memory, and what goes to files and back.

What is parked, and which of it gives way, is decided in policy/parked.py. The copies between the
device and host memory are queued by the scheduler and done here, in its order, before the next
step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ftengine.cache.kv_pool import Allocate, KvPool
from ftengine.cache.park_files import Head, ParkFolder, file_bytes
from ftengine.cache.park_reads import ParkReading
from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.cache.policy.parked import ParkedTexts, ParkLimits, Reading
from ftengine.cache.policy.parked_tree import Kept, ParkedFile
from ftengine.cache.state_pool import StatePool
from ftengine.kernels.row_copies import CopyRows, torch_copy_rows

log = logging.getLogger(__name__)

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
        self._ahead: Callable[[], bool] = lambda: False
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

    def connect(self, settle: Callable[[], None], ahead: Callable[[], bool]) -> None:
        """settle: does all copies that are queued; called before rows are looked at.

        ahead: queues copies of what will be parked next. False: of nothing.
        """
        self._settle, self._ahead = settle, ahead

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
        self,
        kind: str,
        copies: Sequence[Queued],
        pool: KvPool,
        states: StatePool | None,
        copy_rows: CopyRows = torch_copy_rows,
    ) -> None:
        """Do queued copies of one kind. Of several to one place the last one counts."""
        last = {copy.target: copy.source for copy in copies}
        read = [target for target, source in last.items() if source < 0]
        found = [self._read[last.pop(target)] for target in read]
        targets, sources = tuple(last), tuple(last.values())
        if kind == "park_page":
            pool.read_into(sources, self._pages, targets, copy_rows)
        elif kind == "return_page":
            pool.write_pages(targets, self._pages, sources, copy_rows)
            if found:
                pool.write_pages(read, torch.stack(found), range(len(found)), copy_rows)
        else:
            assert states is not None, "a model without states has none to copy"
            slots, rows = states.rows().unsqueeze(0), self._states.unsqueeze(0)
            if kind == "park_state":
                copy_rows(slots, sources, rows, targets)
                return
            copy_rows(rows, sources, slots, targets)
            for target, row in zip(read, found, strict=True):
                copy_rows(row.view(1, 1, -1), (0,), slots, (target,))

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

    def start(self, wanted: Mapping[ParkedFile, Sequence[Kept]]) -> ParkReading:
        """As Disk has it."""
        assert self._folder is not None
        places = {file.rank: [kept.place for kept in items] for file, items in wanted.items()}
        return ParkReading(self._folder, places)

    def read(
        self, file: ParkedFile, items: Sequence[Kept], reading: Reading | None
    ) -> list[int] | None:
        """As Disk has it."""
        assert self._folder is not None
        read = reading.rows if isinstance(reading, ParkReading) else self._folder.read
        rows = read(file.rank, [kept.place for kept in items])
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

    def park_ahead(self, go_on: Callable[[], bool]) -> None:
        """Copy what will be parked next; while nothing else is to be done, which go_on says."""
        while go_on() and self._ahead():
            self._settle()

    def settled(self) -> None:
        """No copies are queued: what was read of files and is not waited for may go."""
        if not self.texts.is_holding:
            self._read.clear()

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
