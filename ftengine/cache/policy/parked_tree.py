"""The tree of parked texts: places, what is kept at them, and ways through them; pure.

Which of it stays where, and for how long, is parked.py's business.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ftengine.cache.policy.pages import PAGE_TOKENS
from ftengine.cache.policy.radix import Tokens

FILE_PAGES = 64
"""Most pages in one file: little enough to be written in one go between steps."""


class ParkedNode:
    """The place of one page in the texts. gone: it was taken out, links to it are of no use."""

    __slots__ = ("children", "depth", "gone", "page", "parent", "salt", "states", "tokens")

    def __init__(self, parent: ParkedNode | None, tokens: Tokens, salt: str) -> None:
        self.parent = parent
        self.tokens = tokens
        self.salt = salt
        self.depth: int = len(tokens) + (parent.depth if parent else 0)
        self.children: dict[Tokens, ParkedNode] = {}
        self.page: Kept | None = None
        self.states: dict[Tokens, Kept] = {}
        self.gone = False

    def text(self) -> Tokens:
        """All tokens up to the end of this page."""
        parts: list[Tokens] = []
        at: ParkedNode | None = self
        while at is not None:
            parts.append(at.tokens)
            at = at.parent
        return tuple(token for part in reversed(parts) for token in part)


class Kept:
    """A page (tail empty), or the state after `tail`, the 1 to 16 tokens behind a node.

    row: in host memory, -1 = not there. file and place: the number in a file, None = in no file.
    """

    __slots__ = ("file", "node", "place", "row", "tail")

    def __init__(self, node: ParkedNode, tail: Tokens = ()) -> None:
        self.node = node
        self.tail = tail
        self.row = -1
        self.file: ParkedFile | None = None
        self.place = -1

    @property
    def end(self) -> int:
        """Tokens up to its end."""
        return self.node.depth + len(self.tail)

    @property
    def start(self) -> int:
        """Tokens before its page, or before the page that a state's last token lies in."""
        return self.node.depth if self.tail else self.node.depth - len(self.node.tokens)


class ParkedFile:
    """One file. rank: its name, higher where used later; kept: what in it is of use still."""

    __slots__ = ("kept", "num_bytes", "rank")

    def __init__(self, rank: int, num_bytes: int) -> None:
        self.rank = rank
        self.num_bytes = num_bytes
        self.kept: list[Kept] = []


class Rows:
    """Rows of one kind and what lies in them, unused longest first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = list(range(count - 1, -1, -1))
        self.used: OrderedDict[Kept, None] = OrderedDict()

    def put(self, kept: Kept) -> None:
        kept.row = self.free.pop()
        self.used[kept] = None

    def give_up(self, kept: Kept) -> None:
        if kept.row >= 0:
            self.free.append(kept.row)
            kept.row = -1
            del self.used[kept]

    def touch(self, kept: Kept) -> None:
        if kept.row >= 0:
            self.used.move_to_end(kept)


def walk(root: ParkedNode, tokens: Tokens, whole: int) -> list[ParkedNode]:
    """Places along a text, the root first, as long as the device or a parked page has them."""
    way = [root]
    node, at = root, 0
    while (end := at + PAGE_TOKENS) <= len(tokens):
        child = node.children.get(tokens[at:end])
        if child is None or (end > whole and child.page is None):
            break
        way.append(child)
        node, at = child, end
    return way


def longest(node: ParkedNode, rest: Tokens) -> tuple[ParkedNode | None, int]:
    """The child with a page that shares the most tokens with `rest`, and how many."""
    best: tuple[int, Tokens] = (0, ())
    for child in node.children.values():
        if child.page is not None:
            best = max(best, (_common(child.tokens, rest), child.tokens))
    return (node.children[best[1]], best[0]) if best[0] else (None, 0)


def _common(first: Tokens, second: Tokens) -> int:
    for count, (mine, theirs) in enumerate(zip(first, second, strict=False)):
        if mine != theirs:
            return count
    return min(len(first), len(second))


def deepest_state(
    way: Sequence[ParkedNode], tokens: Tokens, limit: int, reached: int
) -> Kept | None:
    for node in reversed(way):
        for count in range(min(PAGE_TOKENS, limit - node.depth), 0, -1):
            if node.depth + count <= reached:
                return None
            kept = node.states.get(tokens[node.depth : node.depth + count])
            if kept is not None:
                return kept
    return None


def is_covered(spot: ParkedNode) -> bool:
    """Whether another page holds the tokens of this one and more."""
    if spot.parent is None or len(spot.tokens) == PAGE_TOKENS:
        return False
    others = spot.parent.children.values()
    return any(
        other is not spot and other.page and other.tokens[: len(spot.tokens)] == spot.tokens
        for other in others
    )


def upwards(kept: Kept) -> list[Kept]:
    """It and the pages before it that lie in memory only, as they stand in the text."""
    items = [kept]
    node = kept.node.parent
    while not kept.tail and node is not None and len(items) < FILE_PAGES:
        if node.page is None or node.page.row < 0 or node.page.file is not None:
            break
        items.append(node.page)
        node = node.parent
    return items[::-1]


def pages_of(state: Kept) -> list[Kept]:
    """The pages that lead to a state and lie in memory, as they stand in the text."""
    tail = state.tail
    ends = (node.page for node in state.node.children.values() if node.tokens[: len(tail)] == tail)
    items = [page for page in ends if page is not None and page.row >= 0]
    node: ParkedNode | None = state.node
    while node is not None:
        if node.page is not None and node.page.row >= 0:
            items.append(node.page)
        node = node.parent
    return items[::-1]


def downwards(kept: Kept) -> list[Kept]:
    """It and pages after it that lie in memory only."""
    items = [kept]
    while not kept.tail and len(items) < FILE_PAGES:
        children = items[-1].node.children.values()
        pages = (child.page for child in children if child.page is not None)
        page = next((item for item in pages if item.row >= 0 and item.file is None), None)
        if page is None:
            break
        items.append(page)
    return items


def in_file(kept: Kept, file: ParkedFile, place: int) -> Kept:
    if kept.file is None:
        kept.file, kept.place = file, place
        file.kept.append(kept)
    return kept
