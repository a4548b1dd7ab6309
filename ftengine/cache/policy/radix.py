"""Prefix tree over token ids: which pages and which checkpoints hold what has been computed; pure.

A node is one KV page: the 16 tokens it holds, or fewer at the end of a text. Its ancestors hold the
tokens before. Texts of different salts never meet. A checkpoint belongs to a node and the tokens
that follow it ("tail", 1 to 16), and lives as long as some child of the node holds those tokens,
since without their keys and values it leads nowhere.

Recency: nodes that nobody uses are kept in one order, every parent after its children, so the
first one is always a leaf and evicting it takes constant time. Pinned nodes are not in that order,
and the ancestors of a pinned node are pinned too. Checkpoints have an order of their own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from ftengine.cache.policy.pages import PAGE_TOKENS, PageAllocator

Tokens = tuple[int, ...]


class Node:
    """One page. depth: tokens up to its end. A root holds no tokens, and its page is -1."""

    __slots__ = (
        "children",
        "depth",
        "page",
        "parent",
        "parked",
        "pins",
        "salt",
        "states",
        "tokens",
    )

    def __init__(self, parent: Node | None, tokens: Tokens, page: int, salt: str) -> None:
        self.parent = parent
        self.tokens = tokens
        self.page = page
        self.salt = salt
        self.depth: int = len(tokens) + (parent.depth if parent else 0)
        self.pins = 0
        self.children: dict[Tokens, Node] = {}
        self.states: dict[Tokens, int] = {}
        self.parked: Any = None  # where parked.py keeps it

    def path(self) -> list[Node]:
        """From the first page to this one."""
        found: list[Node] = []
        node = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def text(self) -> Tokens:
        """All tokens up to the end of this node."""
        return tuple(token for node in self.path() for token in node.tokens)


@dataclass(frozen=True)
class Match:
    """The deepest point that a text can go on from.

    node: last page shared whole, pinned. num_tokens: how much is reused; where that is more than
    node.depth the rest is copied from the page `partial`. checkpoint: slot of the state there, -1
    where the model needs none. num_known: tokens whose keys and values are known, reused or not,
    num_whole of them in whole pages.
    """

    node: Node
    num_tokens: int
    partial: int = -1
    checkpoint: int = -1
    num_known: int = 0
    num_whole: int = 0


class Evictions(Protocol):
    """Who is told, just before, what is given up to make room."""

    def page(self, node: Node) -> None:
        """A page, a leaf of the tree."""

    def state(self, node: Node, tail: Tokens, slot: int) -> None:
        """The checkpoint after `tail`, behind a node."""


class RadixTree:
    """Holds one reference to each of its pages. num_checkpoints 0: the model keeps no state.

    Checkpoints are the slots first_slot .. first_slot + num_checkpoints - 1.
    """

    def __init__(self, pages: PageAllocator, num_checkpoints: int = 0, first_slot: int = 0) -> None:
        self._pages = pages
        self._stateful = num_checkpoints > 0
        self._num_slots = num_checkpoints
        self._free_slots = list(range(first_slot + num_checkpoints - 1, first_slot - 1, -1))
        self._roots: dict[str, Node] = {}
        self._idle: OrderedDict[Node, None] = OrderedDict()
        self._states: OrderedDict[tuple[Node, Tokens], None] = OrderedDict()
        self._num_nodes = 0
        self.evictions: Evictions | None = None
        self.evicted_pages = 0
        self.evicted_checkpoints = 0

    @property
    def num_pages(self) -> int:
        """Pages the tree holds."""
        return self._num_nodes

    @property
    def num_evictable(self) -> int:
        """Pages that evicting everything nobody uses would free."""
        return len(self._idle)

    @property
    def num_checkpoints(self) -> int:
        """Checkpoints in the tree."""
        return len(self._states)

    def acquire(
        self, salt: str, tokens: Sequence[int], limit: int, known: Node | None = None
    ) -> Match:
        """Find the deepest point within the first `limit` tokens, and pin the way to it.

        known: a page on this way, or behind one on it.
        """
        root = self._root(salt)
        whole = _whole_pages(_last_shared(known, tokens[:limit]) or root, tokens, limit)
        child, common = _longest(whole, tokens[whole.depth : limit])
        match = Match(whole, whole.depth + common, child.page if child else -1)
        if self._stateful:
            match = self._with_state(whole, tokens, limit) or Match(root, 0)
        self._pin(match.node)
        return replace(match, num_known=whole.depth + common, num_whole=whole.depth)

    def release(self, node: Node) -> None:
        """Undo one pin of the way to `node`, which counts as used just now."""
        at: Node | None = node
        while at is not None:
            at.pins -= 1
            assert at.pins >= 0, "a node was released twice"
            if at.pins == 0 and at.parent is not None:
                self._idle[at] = None
            last, at = at, at.parent
        self._forget_root(last)

    def extend(self, lease: Node, tokens: Sequence[int], pages: list[int]) -> Node:
        """Put computed tokens in the tree. lease: pinned, where their holder stood before.

        pages: the holder's; where the tree has an equal page already, the holder's own is given
        back and replaced in the list. Returns the new lease; it takes the old one's place.
        """
        node = lease
        own_tail = None
        if lease.parent is not None and len(lease.tokens) < PAGE_TOKENS:
            if len(tokens) <= lease.depth:
                return lease
            own_tail, node = lease, lease.parent
        while node.depth < len(tokens):
            part = tuple(tokens[node.depth : node.depth + PAGE_TOKENS])
            child = node.children.get(part)
            if len(part) < PAGE_TOKENS and _covers(node, part, own_tail):
                break
            if child is None:
                child = self._add(node, part, pages[node.depth // PAGE_TOKENS])
            else:
                self._swap(child, pages, node.depth // PAGE_TOKENS)
            self._pin_one(child)
            self._drop_shorter(child)
            node = child
        if own_tail is not None:
            own_tail.pins -= 1
            self._remove(own_tail)
        return node

    def graft(self, lease: Node, pages: Sequence[tuple[Tokens, int, Any]]) -> Node:
        """Put pages behind the last whole one that is cached of a text, and pin them.

        pages: tokens, page, and where it is parked. The caller's reference of each becomes the
        tree's. Returns the new lease; it takes the old one's place.
        """
        node = lease
        for tokens, page, parked in pages:
            assert tokens not in node.children, "a page is cached already"
            child = node.children[tokens] = Node(node, tokens, page, node.salt)
            child.pins, child.parked = 1, parked
            if node is lease:
                self._drop_shorter(child)
            node = child
        self._num_nodes += len(pages)
        return node

    def attach(self, lease: Node, tokens: Sequence[int], slot: int) -> bool:
        """Keep the checkpoint in `slot`, taken after `tokens`, which lie on the way to the lease.

        Returns False, and frees the slot, when there is one already or its tokens are not held.
        """
        node = _ancestor(lease, (len(tokens) - 1) // PAGE_TOKENS * PAGE_TOKENS)
        tail = tuple(tokens[node.depth :])
        if tail in node.states or not _covers(node, tail, None):
            self.give_slot(slot)
            return False
        node.states[tail] = slot
        self._states[node, tail] = None
        return True

    def has_checkpoint(self, lease: Node, tokens: Sequence[int]) -> bool:
        """Whether the checkpoint after `tokens`, on the way to the lease, is there: used now."""
        node = _ancestor(lease, (len(tokens) - 1) // PAGE_TOKENS * PAGE_TOKENS)
        tail = tuple(tokens[node.depth :])
        if tail not in node.states:
            return False
        self._states.move_to_end((node, tail))
        return True

    def take_slot(self) -> int | None:
        """A slot for a new checkpoint, at need the one unused longest. None: all are taken."""
        if not self._free_slots and self._states:
            node, tail = next(iter(self._states))
            if self.evictions is not None:
                self.evictions.state(node, tail, node.states[tail])
            self._drop_state(node, tail)
            self.evicted_checkpoints += 1
        return self._free_slots.pop() if self._free_slots else None

    def give_slot(self, slot: int) -> None:
        """A slot taken and not attached is free again."""
        self._free_slots.append(slot)

    def evict(self, count: int) -> int:
        """Free up to `count` pages, those unused longest. Returns how many."""
        pages: list[int] = []
        while len(pages) < count and self._idle:
            node, _ = self._idle.popitem(last=False)
            self._tell_eviction(node)
            pages.append(node.page)
            self._detach(node)
        self._pages.release(pages)
        self.evicted_pages += len(pages)
        return len(pages)

    def next_evicted(self, count: int) -> list[Node]:
        """Pages that evicting `count` would free."""
        return list(islice(self._idle, max(count, 0)))

    def next_dropped(self, count: int) -> list[tuple[Node, Tokens, int]]:
        """Checkpoints that taking `count` slots would drop: node, tail, slot."""
        first = islice(self._states, max(count - len(self._free_slots), 0))
        return [(node, tail, node.states[tail]) for node, tail in first]

    def forget(self) -> None:
        """Drop all that nobody uses, and tell nobody."""
        told, self.evictions = self.evictions, None
        self.evict(len(self._idle))
        self.evictions = told

    def pin(self, salt: str, tokens: Sequence[int]) -> Node:
        """Pin the way to the last whole page that is cached of a text, whatever the states."""
        root = self._root(salt)
        node = _whole_pages(root, tokens, len(tokens))
        self._pin(node)
        return node

    def renumber(self, moves: Mapping[int, int]) -> None:
        """Pages have moved. moves: old id -> new id; those not named stayed."""
        for node in self.nodes():
            node.page = moves.get(node.page, node.page)

    def nodes(self) -> Iterator[Node]:
        """All pages, parents first."""
        todo = list(self._roots.values())
        while todo:
            node = todo.pop()
            todo.extend(node.children.values())
            if node.parent is not None:
                yield node

    def check_integrity(self) -> None:
        """Assert what the module's text promises; for tests."""
        nodes = list(self.nodes())
        assert len(nodes) == self._num_nodes
        assert len({node.page for node in nodes}) == len(nodes), "a page stands in two nodes"
        assert {node for node in nodes if not node.pins} == set(self._idle)
        order = {node: number for number, node in enumerate(self._idle)}
        for node in nodes:
            assert node.parent is not None
            assert node.parent.children[node.tokens] is node
            assert node.parent.pins >= node.pins
            assert 0 < len(node.tokens) <= PAGE_TOKENS
            assert len(node.tokens) == PAGE_TOKENS or not node.children
            if node in order and node.parent in order:
                assert order[node] < order[node.parent], "a parent would go before its child"
        held = {(node, tail) for node in (*nodes, *self._roots.values()) for tail in node.states}
        assert held == set(self._states)
        assert all(_covers(node, tail, None) for node, tail in held), "a checkpoint without pages"
        slots = [node.states[tail] for node, tail in held]
        assert len(set(slots + self._free_slots)) == len(slots) + len(self._free_slots)

    def _with_state(self, whole: Node, tokens: Sequence[int], limit: int) -> Match | None:
        node: Node | None = whole
        while node is not None:
            longest = min(PAGE_TOKENS, limit - node.depth) if node.states else 0
            for count in range(longest, 0, -1):
                tail = tuple(tokens[node.depth : node.depth + count])
                if tail in node.states:
                    return self._at_state(node, tail)
            node = node.parent
        return None

    def _at_state(self, node: Node, tail: Tokens) -> Match:
        self._states.move_to_end((node, tail))
        slot, num_tokens = node.states[tail], node.depth + len(tail)
        if len(tail) == PAGE_TOKENS:
            return Match(node.children[tail], num_tokens, checkpoint=slot)
        child, _ = _longest(node, tail)
        assert child is not None, "a checkpoint without pages"
        return Match(node, num_tokens, child.page, slot)

    def _root(self, salt: str) -> Node:
        if salt not in self._roots:
            self._roots[salt] = Node(None, (), -1, salt)
        return self._roots[salt]

    def _pin(self, node: Node) -> None:
        at: Node | None = node
        while at is not None:
            if at.pins == 0:
                self._idle.pop(at, None)
            at.pins += 1
            at = at.parent

    def _pin_one(self, node: Node) -> None:
        if node.pins == 0:
            self._idle.pop(node, None)
        node.pins += 1

    def _add(self, parent: Node, tokens: Tokens, page: int) -> Node:
        node = parent.children[tokens] = Node(parent, tokens, page, parent.salt)
        self._pages.share((page,))
        self._num_nodes += 1
        return node

    def _swap(self, node: Node, pages: list[int], number: int) -> None:
        if pages[number] != node.page:
            self._pages.share((node.page,))
            self._pages.release((pages[number],))
            pages[number] = node.page

    def _drop_shorter(self, node: Node) -> None:
        """Ends of other texts that `node` holds too are of no more use."""
        assert node.parent is not None
        for other in list(node.parent.children.values()):
            shorter = len(other.tokens) < len(node.tokens)
            if shorter and not other.pins and node.tokens[: len(other.tokens)] == other.tokens:
                self._remove(other)

    def _tell_eviction(self, node: Node) -> None:
        """Of a page and of the checkpoints that go with it."""
        if self.evictions is None:
            return
        assert node.parent is not None
        if node.parent.states:
            for tail, slot in node.parent.states.items():
                if node.tokens[: len(tail)] == tail:
                    self.evictions.state(node.parent, tail, slot)
        self.evictions.page(node)

    def _remove(self, node: Node) -> None:
        self._idle.pop(node, None)
        self._detach(node)
        self._pages.release((node.page,))

    def _detach(self, node: Node) -> None:
        """Take it out; its page is still held."""
        parent = node.parent
        assert parent is not None
        assert not node.children
        del parent.children[node.tokens]
        self._num_nodes -= 1
        for tail in tuple(parent.states) if parent.states else ():
            if node.tokens[: len(tail)] == tail and not _covers(parent, tail, None):
                self._drop_state(parent, tail)
        if parent.parent is None:
            self._forget_root(parent)

    def _drop_state(self, node: Node, tail: Tokens) -> None:
        del self._states[node, tail]
        self._free_slots.append(node.states.pop(tail))

    def _forget_root(self, node: Node) -> None:
        unused = node.parent is None and not node.children and not node.pins
        if unused and self._roots.get(node.salt) is node:
            del self._roots[node.salt]


def _last_shared(node: Node | None, tokens: Sequence[int]) -> Node | None:
    """It, or the one before where it holds less than a page or anything but these tokens."""
    if node is None or len(node.tokens) < PAGE_TOKENS:
        return None if node is None else node.parent
    start = node.depth - PAGE_TOKENS
    return node if tuple(tokens[start : node.depth]) == node.tokens else node.parent


def _whole_pages(root: Node, tokens: Sequence[int], limit: int) -> Node:
    node = root
    while node.depth + PAGE_TOKENS <= limit:
        child = node.children.get(tuple(tokens[node.depth : node.depth + PAGE_TOKENS]))
        if child is None:
            break
        node = child
    return node


def _longest(node: Node, rest: Sequence[int]) -> tuple[Node | None, int]:
    """The child that shares the most tokens with `rest`, and how many."""
    best, most = None, 0
    for child in node.children.values():
        count = 0
        for mine, theirs in zip(child.tokens, rest, strict=False):
            if mine != theirs:
                break
            count += 1
        if count > most:
            best, most = child, count
    return best, most


def _covers(node: Node, tail: Tokens, besides: Node | None) -> bool:
    """Whether a child of `node` other than `besides` holds `tail`."""
    return any(
        child is not besides and child.tokens[: len(tail)] == tail
        for child in node.children.values()
    )


def _ancestor(node: Node, depth: int) -> Node:
    while node.depth > depth:
        assert node.parent is not None
        node = node.parent
    return node
