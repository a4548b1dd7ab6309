"""Which evicted pages and states lie outside the device: rows of host memory, and files; pure.

A tree of texts like radix.py's, but what is missing in it may still be on the device. A page or a
state may lie in a row, in a file or in both, and stays where it is when the device takes it back:
evicted again it costs nothing. Rows of pages, rows of states and files are each given up when
unused longest; what leaves host memory and lies in no file yet goes to one, together with the pages
before it. Bytes are moved elsewhere (parking.py); rows are written and read by copies that the
scheduler queues.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.cache.policy.parked_tree import (
    Kept,
    ParkedFile,
    ParkedNode,
    Rows,
    deepest_state,
    downwards,
    in_file,
    is_covered,
    longest,
    pages_of,
    upwards,
    walk,
)
from ftengine.cache.policy.radix import Match, Node, Tokens

T = TypeVar("T")


class Reading(Protocol):
    """Files that are being read."""

    @property
    def is_done(self) -> bool:
        """Whether nobody has to wait for them."""

    def cancel(self) -> None:
        """They are not wanted any more."""


class Disk(Protocol):
    """Where files are made. Whatever copies are queued is done before bytes are looked at."""

    def size(self, items: Sequence[Kept]) -> int:
        """Bytes of a file of these, which all lie in host memory."""

    def write(self, items: Sequence[Kept], rank: int) -> ParkedFile | None:
        """Make the file. None: it could not be written."""

    def start(self, wanted: Mapping[ParkedFile, Sequence[Kept]]) -> Reading:
        """Begin to read, for `read` to be called later."""

    def read(
        self, file: ParkedFile, items: Sequence[Kept], reading: Reading | None
    ) -> list[int] | None:
        """Numbers below -1 under which the bytes can be copied from now on. None: damaged.

        What is in `reading` is waited for, the rest is read now.
        """

    def remove(self, file: ParkedFile) -> None:
        """Delete the file."""


@dataclass(frozen=True)
class ParkLimits:
    """Rows of host memory, for pages and for states; bytes of all files."""

    page_rows: int
    state_rows: int = 0
    file_bytes: int = 0


@dataclass(frozen=True)
class Found:
    """What leads further than the device alone. num_tokens: how far.

    pages: (what it is, where its bytes are) behind the device's whole pages, in order; state: the
    one to go on from, where the model needs one.
    """

    num_tokens: int
    pages: tuple[tuple[Kept, int], ...]
    state: tuple[Kept, int] | None = None


@dataclass(frozen=True)
class _Way:
    """As Found, wherever the bytes are."""

    num_tokens: int
    pages: list[Kept]
    state: Kept | None


class ParkedTexts:
    """All that is parked of one model. stateful: a text is of use only up to a state.

    writes_files: what leaves host memory goes to files, where there is a disk.
    """

    def __init__(self, limits: ParkLimits, stateful: bool, disk: Disk | None = None) -> None:
        self.limits = limits
        self._stateful = stateful
        self._disk = disk
        self._pages = Rows(limits.page_rows)
        self._states = Rows(limits.state_rows)
        self._roots: dict[str, ParkedNode] = {}
        self._files: OrderedDict[ParkedFile, None] = OrderedDict()
        self._held: set[Kept] = set()
        self._next_rank = 1
        self.writes_files = True
        self.file_bytes = 0
        self.returned_tokens = 0

    @property
    def num_pages(self) -> int:
        """Pages in host memory."""
        return len(self._pages.used)

    @property
    def num_states(self) -> int:
        """States in host memory."""
        return len(self._states.used)

    def has_page(self, node: Node) -> bool:
        """Whether a page of the device is in host memory too."""
        spot: ParkedNode | None = node.parked
        return bool(spot and not spot.gone and spot.page and spot.page.row >= 0)

    def has_state(self, node: Node, tail: Tokens) -> bool:
        """The same of the state after `tail` behind a node."""
        spot: ParkedNode | None = node.parked
        kept = None if spot is None or spot.gone else spot.states.get(tail)
        return kept is not None and kept.row >= 0

    def page_evicted(self, node: Node) -> int | None:
        """The device gives up a page. Returns the row to copy it to; None: nothing to copy."""
        spot: ParkedNode | None = node.parked
        if spot is None or spot.gone:
            spot = self._spot(node)
        if spot.page is not None and spot.page.row >= 0:
            self._pages.touch(spot.page)
            return None
        covered = spot.page is None and is_covered(spot)
        if covered or not self._make_room(self._pages):
            self._prune(spot)
            return None
        spot = self._spot(node)  # making room may have taken it out
        kept = spot.page = spot.page or Kept(spot)
        self._pages.put(kept)
        self._drop_shorter(spot)
        return kept.row

    def state_evicted(self, node: Node, tail: Tokens) -> int | None:
        """The device gives up the state after `tail` behind a node; as page_evicted."""
        spot = self._spot(node)
        kept = spot.states.get(tail)
        if kept is not None and kept.row >= 0:
            self._states.touch(kept)
            return None
        if not self._make_room(self._states):
            self._prune(spot)
            return None
        spot = self._spot(node)
        kept = spot.states[tail] = spot.states.get(tail) or Kept(spot, tail)
        self._states.put(kept)
        return kept.row

    def begin_reading(self, salt: str, tokens: Tokens, match: Match) -> Reading | None:
        """Begin to read what `find` would have to read. None: nothing."""
        if not self._files:
            return None
        way = self._find(salt, tokens, match)
        wanted = {} if way is None else _in_files((*way.pages, *_one(way.state)))
        return self._disk.start(wanted) if wanted and self._disk is not None else None

    def find(
        self, salt: str, tokens: Tokens, match: Match, reading: Reading | None = None
    ) -> Found | None:
        """The deepest point of a text beyond the device's match that parked bytes lead to.

        match: what the device has of the same tokens. What lies in files only is read, as far as it
        is not in `reading`; what turns out to be damaged is forgotten. Rows that are found stay as
        they are until `let_go`.
        """
        while True:
            way = self._find(salt, tokens, match)
            if way is None:
                return None
            items = (*way.pages, *_one(way.state))
            rows = self._read(items, reading)
            if rows is not None:
                self._held = set(items)
                pages = tuple(zip(way.pages, rows, strict=False))
                state = None if way.state is None else (way.state, rows[-1])
                return Found(way.num_tokens, pages, state)

    @property
    def is_holding(self) -> bool:
        """Whether something was found that was not let go yet."""
        return bool(self._held)

    def let_go(self) -> None:
        """What was found has been copied, or the copies are queued."""
        self._held.clear()

    def write_all(self, go_on: Callable[[], bool]) -> bool:
        """Put what lies in no file into files, used last first. False: not all of it.

        A state is followed by the pages that lead to it. Files of before give way, those unused
        longest first.
        """
        ways = [(kept, *pages_of(kept)) for kept in reversed(self._states.used)]
        rows = (*(kept for way in ways for kept in way), *reversed(self._pages.used))
        waiting = [kept for kept in dict.fromkeys(rows) if kept.file is None]
        before, top = set(self._files), self._next_rank + len(waiting)
        self._next_rank = top + 1
        made: list[ParkedFile] = []
        for kept in waiting:
            if kept.file is None:
                if not go_on() or not self._to_file(downwards(kept), top - len(made), before):
                    break
                assert kept.file is not None
                made.append(kept.file)
        for file in reversed(made):
            self._files.move_to_end(file)
        return all(kept.file is not None for kept in waiting)

    def add_file(
        self, file: ParkedFile, salt: str, tokens: Tokens, first: int, states: Sequence[int]
    ) -> None:
        """A file is there from before: pages from `first` on, then the states after so many tokens.

        What is known already stays where it is.
        """
        spot = self._root(salt)
        ends = [*range(PAGE_TOKENS, len(tokens), PAGE_TOKENS), len(tokens)]
        for number, end in enumerate(ends):
            if number >= first:
                spot = self._child(spot, tokens[end - (end - 1) % PAGE_TOKENS - 1 : end])
                spot.page = in_file(spot.page or Kept(spot), file, number - first)
            elif end % PAGE_TOKENS == 0:
                spot = self._child(spot, tokens[end - PAGE_TOKENS : end])
        count = max(len(ends) - first, 0)
        for number, at in enumerate(states):
            above = self._above(salt, tokens, at)
            tail = tokens[above.depth : at]
            kept = above.states.get(tail) or Kept(above, tail)
            above.states[tail] = in_file(kept, file, count + number)
        self._prune(spot)
        self._next_rank = max(self._next_rank, file.rank + 1)
        self._files[file] = None
        self.file_bytes += file.num_bytes
        if not file.kept:
            self._drop_file(file)
        while self.file_bytes > self.limits.file_bytes:
            self._drop_file(next(iter(self._files)))

    def check_integrity(self) -> None:
        """Assert what the module's text promises; for tests."""
        todo, seen = list(self._roots.values()), set()
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            held = [*_one(node.page), *node.states.values()]
            assert node.children or held or node.parent is None, "an empty node stays"
            assert not node.gone
            assert all(node.children[child.tokens] is child for child in node.children.values())
            for kept in held:
                assert kept.row >= 0 or kept.file is not None, "kept nowhere"
                assert kept.file is None or kept in kept.file.kept
                seen.add(kept)
        for rows in (self._pages, self._states):
            taken = [kept.row for kept in rows.used]
            assert sorted(taken + rows.free) == list(range(rows.count))
            assert set(rows.used) <= seen
        assert {kept for file in self._files for kept in file.kept} <= seen
        assert all(file.kept for file in self._files), "a file of no use stays"
        assert self.file_bytes == sum(file.num_bytes for file in self._files)
        assert self.file_bytes <= max(self.limits.file_bytes, 0)

    def _find(self, salt: str, tokens: Tokens, match: Match) -> _Way | None:
        root = self._roots.get(salt)
        if root is None:
            return None
        whole = match.num_whole
        way = walk(root, tokens, whole)
        pages = [node.page for node in way[whole // PAGE_TOKENS + 1 :] if node.page is not None]
        num_tokens = way[-1].depth if pages else match.num_known
        if way[-1].depth >= whole:
            child, common = longest(way[-1], tokens[way[-1].depth :])
            if child is not None and child.page and way[-1].depth + common > num_tokens:
                num_tokens = way[-1].depth + common
                pages.append(child.page)
        state = None
        if self._stateful:
            state = deepest_state(way, tokens, num_tokens, match.num_tokens)
            if state is None:
                return None
            num_tokens = state.end
            if num_tokens <= match.num_known:
                pages = []
            while pages and pages[-1].start >= num_tokens:
                pages.pop()
        if num_tokens <= match.num_tokens:
            return None
        return _Way(num_tokens, pages, state)

    def _read(self, items: Sequence[Kept], reading: Reading | None) -> list[int] | None:
        """Where the bytes of each are, those in files read. None: one was damaged."""
        places: dict[Kept, int] = {}
        for file, wanted in _in_files(items).items():
            assert self._disk is not None
            numbers = self._disk.read(file, wanted, reading)
            if numbers is None:
                self._drop_file(file)
                return None
            self._files.move_to_end(file)
            places.update(zip(wanted, numbers, strict=True))
        for kept in reversed(items):  # so that what stands on a page is always older than it
            self._rows(kept).touch(kept)
        return [kept.row if kept.row >= 0 else places[kept] for kept in items]

    def _make_room(self, rows: Rows) -> bool:
        """Whether a row is free, at need after the one unused longest was given up."""
        if not rows.free:
            oldest = next((item for item in rows.used if item not in self._held), None)
            if oldest is not None:
                self._leave_host(oldest)
        return bool(rows.free)

    def _leave_host(self, kept: Kept) -> None:
        if kept.file is None and self.writes_files:
            self._to_file(upwards(kept), self._next_rank)
        self._rows(kept).give_up(kept)
        if kept.file is None:
            self._forget(kept)

    def _to_file(
        self, items: Sequence[Kept], rank: int, may_go: Collection[ParkedFile] | None = None
    ) -> bool:
        """may_go: files that may be deleted for it, None = all."""
        if self._disk is None:
            return False
        size = self._disk.size(items)
        while self._files and self.file_bytes + size > self.limits.file_bytes:
            oldest = next(iter(self._files))
            if may_go is not None and oldest not in may_go:
                return False
            self._drop_file(oldest)
        fits = self.file_bytes + size <= self.limits.file_bytes
        file = self._disk.write(items, rank) if fits else None
        if file is None:
            return False
        self._next_rank = max(self._next_rank, rank + 1)
        for place, kept in enumerate(items):
            in_file(kept, file, place)
        self._files[file] = None
        self.file_bytes += file.num_bytes
        return True

    def _drop_file(self, file: ParkedFile) -> None:
        del self._files[file]
        self.file_bytes -= file.num_bytes
        assert self._disk is not None
        self._disk.remove(file)
        items, file.kept = file.kept, []
        for kept in items:
            kept.file = None
            if kept.row < 0:
                self._forget(kept)

    def _drop_shorter(self, spot: ParkedNode) -> None:
        """Ends of texts that a page holds too are of no more use."""
        assert spot.parent is not None
        for other in list(spot.parent.children.values()):
            shorter = other.page is not None and len(other.tokens) < len(spot.tokens)
            if shorter and spot.tokens[: len(other.tokens)] == other.tokens:
                assert other.page is not None
                self._forget(other.page)

    def _forget(self, kept: Kept) -> None:
        """It lies nowhere any more, or is of no more use."""
        self._rows(kept).give_up(kept)
        file, kept.file = kept.file, None
        if file is not None:
            file.kept.remove(kept)
            if not file.kept:
                self._drop_file(file)
        if kept.tail:
            kept.node.states.pop(kept.tail, None)
        else:
            kept.node.page = None
        self._prune(kept.node)

    def _rows(self, kept: Kept) -> Rows:
        return self._states if kept.tail else self._pages

    def _root(self, salt: str) -> ParkedNode:
        if salt not in self._roots:
            self._roots[salt] = ParkedNode(None, (), salt)
        return self._roots[salt]

    def _child(self, node: ParkedNode, tokens: Tokens) -> ParkedNode:
        found = node.children.get(tokens)
        if found is None:
            found = node.children[tokens] = ParkedNode(node, tokens, node.salt)
        return found

    def _above(self, salt: str, tokens: Tokens, at: int) -> ParkedNode:
        """The node that the tail of a state after `at` tokens follows."""
        node = self._root(salt)
        for start in range(0, (at - 1) // PAGE_TOKENS * PAGE_TOKENS, PAGE_TOKENS):
            node = self._child(node, tokens[start : start + PAGE_TOKENS])
        return node

    def _spot(self, node: Node) -> ParkedNode:
        """The place of a page of the device; nodes remember theirs, so that this stays short."""
        missing: list[Node] = []
        at = node
        while at.parent is not None and (at.parked is None or at.parked.gone):
            missing.append(at)
            at = at.parent
        spot = self._root(at.salt) if at.parent is None else at.parked
        for item in reversed(missing):
            spot = item.parked = self._child(spot, item.tokens)
        found: ParkedNode = spot
        return found

    def _prune(self, spot: ParkedNode) -> None:
        """Take out places at which, and behind which, nothing is kept."""
        at: ParkedNode | None = spot
        while at is not None and not (at.gone or at.children or at.states or at.page):
            at.gone = True
            if at.parent is None:
                del self._roots[at.salt]
            else:
                del at.parent.children[at.tokens]
            at = at.parent


def _in_files(items: Sequence[Kept]) -> dict[ParkedFile, list[Kept]]:
    """Those that lie in files only."""
    found: dict[ParkedFile, list[Kept]] = {}
    for kept in items:
        if kept.row < 0:
            assert kept.file is not None, "kept nowhere"
            found.setdefault(kept.file, []).append(kept)
    return found


def _one(item: T | None) -> tuple[T, ...]:
    return () if item is None else (item,)
