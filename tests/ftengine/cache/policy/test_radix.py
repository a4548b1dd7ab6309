"""The prefix tree against a slow model after every operation, and bugs it must be caught with."""

from __future__ import annotations

import random
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ftengine.cache.policy import radix
from ftengine.cache.policy.pages import PageAllocator, pages_for
from tests.ftengine.cache.policy.naive_tree import NaiveTree, Text

PAGES = 24
SOURCE = Path(radix.__file__).read_text("utf-8")


@dataclass
class Holder:
    """A running sequence: what it computed, in which pages, and where it stands in the tree."""

    number: int
    salt: str
    tokens: Text
    pages: list[int]
    lease: Any
    saved: list[tuple[int, int]] = field(default_factory=list)


class Play:
    """Random operations on a tree and on the slow model. Pages remember what was written there."""

    def __init__(self, module: Any, seed: int, stateful: bool) -> None:
        self.rng = random.Random(seed)
        self.pages = PageAllocator(PAGES)
        self.slots = 5 if stateful else 0
        self.tree = module.RadixTree(self.pages, self.slots, 2)
        self.naive = NaiveTree(self.slots)
        self.written: list[list[Any]] = [[None] * 16 for _ in range(PAGES)]
        self.kept: dict[int, tuple[str, Text]] = {}
        self.holders: list[Holder] = []
        self.texts: list[tuple[str, Text]] = [("", (0,))]
        self.made = 0

    def run(self, count: int) -> None:
        for _ in range(count):
            action = self.rng.choice((self.begin, self.begin, self.grow, self.grow, self.end))
            action()
            if self.rng.random() < 0.15:
                wanted = self.rng.randint(1, 4)
                assert self.tree.evict(wanted) == self.naive.evict(wanted)
            self.check()

    def begin(self) -> None:
        if len(self.holders) == 3:
            return
        salt, tokens = self.new_text()
        match = self.tree.acquire(salt, tokens, len(tokens) - 1)
        reused, known = self.naive.match(salt, tokens, len(tokens) - 1)
        assert (match.num_tokens, match.num_known) == (reused, known)
        assert match.node.depth == reused // 16 * 16
        pages = [node.page for node in match.node.path()]
        self.pages.share(pages)
        self.made += 1
        holder = Holder(self.made, salt, tokens[:reused], pages, match.node)
        self.naive.pin(holder.number, salt, tokens[: match.node.depth])
        if match.num_tokens > match.node.depth:
            content = list(self.written[match.partial])
            fresh = self.allocate(1)
            if fresh is None:
                self.give_up(holder)
                return
            self.written[fresh[0]] = content
            holder.pages += fresh
        if self.slots and reused:
            assert self.kept[match.checkpoint] == (salt, tokens[:reused])
        self.holders.append(holder)
        self.compute(holder, tokens)

    def grow(self) -> None:
        if self.holders:
            holder = self.rng.choice(self.holders)
            more = tuple(self.rng.choices((0, 1), k=self.rng.randint(1, 20)))
            self.compute(holder, holder.tokens + more)

    def end(self) -> None:
        if self.holders:
            holder = self.holders.pop(self.rng.randrange(len(self.holders)))
            self.hand_over(holder)
            self.texts.append((holder.salt, holder.tokens))
            self.give_up(holder)

    def give_up(self, holder: Holder) -> None:
        self.pages.release(holder.pages)
        self.tree.release(holder.lease)
        self.naive.unpin(holder.number)

    def compute(self, holder: Holder, tokens: Text) -> None:
        """Write tokens to pages one by one; keep a state here and there; tell the tree."""
        missing = pages_for(len(tokens)) - len(holder.pages)
        fresh = self.allocate(missing) if missing > 0 else []
        if fresh is None:
            return
        holder.pages += fresh
        for at in range(len(holder.tokens), len(tokens)):
            self.written[holder.pages[at // 16]][at % 16] = (holder.salt, tokens[: at + 1])
        start, holder.tokens = len(holder.tokens), tokens
        if self.slots and len(tokens) > start and self.rng.random() < 0.6:
            taken = sum(len(item.saved) for item in self.holders)
            room = self.naive.make_room(taken)
            slot = self.tree.take_slot()
            assert (slot is not None) == room
            if slot is not None:
                at = self.rng.randint(start + 1, len(tokens))
                self.kept[slot] = (holder.salt, tokens[:at])
                holder.saved.append((at, slot))
        if self.rng.random() < 0.7:
            self.hand_over(holder)

    def hand_over(self, holder: Holder) -> None:
        holder.lease = self.tree.extend(holder.lease, holder.tokens, holder.pages)
        self.naive.insert(holder.number, holder.salt, holder.tokens)
        for at, slot in holder.saved:
            there = self.tree.attach(holder.lease, holder.tokens[:at], slot)
            assert there == self.naive.attach(holder.salt, holder.tokens[:at])
        holder.saved = []

    def allocate(self, count: int) -> list[int] | None:
        short = count - self.pages.num_free
        if short > 0:
            assert self.tree.evict(short) == self.naive.evict(short)
        return self.pages.allocate(count)

    def new_text(self) -> tuple[str, Text]:
        salt, tokens = self.rng.choice(self.texts[-12:])
        if self.rng.random() < 0.1:
            salt = self.rng.choice("ab")
        if self.naive.states and self.rng.random() < 0.15:
            return self.rng.choice(list(self.naive.states))
        if len(tokens) >= 16 and self.rng.random() < 0.2:
            return salt, tokens[: len(tokens) // 16 * 16 + self.rng.randint(0, 1)][:90]
        keep = self.rng.randint(0, len(tokens))
        more = tuple(self.rng.choices((0, 1), k=self.rng.randint(1, 24)))
        return salt, (tokens[:keep] + more)[:90]

    def check(self) -> None:
        self.tree.check_integrity()
        self.pages.check_integrity()
        found = {(node.salt, node.text()): node.page for node in self.tree.nodes()}
        assert set(found) == set(self.naive.pages)
        for (salt, text), page in found.items():
            first = (len(text) - 1) // 16 * 16
            for at in range(first, len(text)):
                assert self.written[page][at - first] == (salt, text[: at + 1])
        assert self.tree.num_checkpoints == len(self.naive.states)
        assert self.tree.num_evictable == sum(
            not self.naive.pinned(key) for key in self.naive.pages
        )
        held = {page for holder in self.holders for page in holder.pages}
        used = len(held | set(found.values()))
        assert used == self.pages.num_pages - self.pages.num_free, "pages leaked"
        for holder in self.holders:
            for at, _ in enumerate(holder.tokens):
                content = self.written[holder.pages[at // 16]][at % 16]
                assert content == (holder.salt, holder.tokens[: at + 1])


def play_out(module: Any, seed: int, stateful: bool, steps: int = 80) -> None:
    """Play, then let everybody go: nothing may be left."""
    play = Play(module, seed, stateful)
    play.run(steps)
    while play.holders:
        play.end()
        play.check()
    assert play.tree.evict(PAGES) == play.naive.evict(PAGES)
    play.check()
    assert play.pages.num_free == PAGES
    assert not play.tree._roots


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_tree_does_what_the_slow_model_does(seed: int, stateful: bool) -> None:
    play_out(radix, seed, stateful)


@pytest.mark.parametrize("last", [(), (3,) * 9, (3,) * 16, (3,) * 9 + (4,) * 7])
def test_grafted_pages_are_found_from_their_end_as_from_the_root(last: tuple[int, ...]) -> None:
    """The last one may hold less than a page, or other tokens than the text goes on with."""
    pages = PageAllocator(6)
    tree = radix.RadixTree(pages)
    text = (1,) * 16 + (2,) * 16 + (3,) * 20
    parts = [part for part in (text[:16], text[16:32], last) if part]
    taken = pages.allocate(len(parts))
    assert taken is not None
    root = tree.pin("", text)
    lease = tree.graft(root, [(part, page, None) for part, page in zip(parts, taken, strict=True)])
    tree.check_integrity()
    found = tree.acquire("", text, len(text), lease)
    assert found == tree.acquire("", text, len(text))
    assert found.num_tokens == 32 + sum(token == 3 for token in last)
    for node in (lease, found.node, found.node):
        tree.release(node)
    tree.check_integrity()
    assert tree.evict(6) == len(parts)
    assert pages.num_free == 6


@pytest.mark.slow
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("seed", range(100, 400))
def test_tree_does_what_the_slow_model_does_at_length(seed: int, stateful: bool) -> None:
    play_out(radix, seed, stateful, 300)


MUTANTS = {
    "a page is kept without a reference": ("self._pages.share((page,))\n", "pass\n"),
    "a page is not given back": ("        self._pages.release((node.page,))\n", ""),
    "a page of another is taken without a reference": ("self._pages.share((node.page,))", "pass"),
    "one's own equal page is not given back": ("self._pages.release((pages[number],))", "pass"),
    "the newest goes first": (
        "self._idle.popitem(last=False)",
        "self._idle.popitem()",
    ),
    "parents go before children": (
        "self._idle[at] = None\n",
        "self._idle[at] = None; self._idle.move_to_end(at, last=False)\n",
    ),
    "pinned pages stay in the order": (
        "self._idle.pop(node, None)\n        node.pins",
        "node.pins",
    ),
    "only the last page is pinned": (
        "at = at.parent\n\n    def _pin_one",
        "at = None\n\n    def _pin_one",
    ),
    "one page too many": (
        "node.depth + PAGE_TOKENS <= limit",
        "node.depth + PAGE_TOKENS <= limit + 1",
    ),
    "a whole page at the limit is missed": (
        "node.depth + PAGE_TOKENS <= limit",
        "node.depth + PAGE_TOKENS < limit",
    ),
    "the partial page counts one more": (
        "whole.depth + common, child.page",
        "whole.depth + common + bool(common), child.page",
    ),
    "the first child, not the best": ("if count > most:", "if count and not most:"),
    "salts are forgotten": (
        "self._roots[salt] = Node(None, (), -1, salt)\n        return self._roots[salt]",
        'self._roots.setdefault("", Node(None, (), -1, salt))\n        return self._roots[""]',
    ),
    "a state is left when its page goes": (
        "if node.tokens[: len(tail)] == tail and not",
        "if False and not",
    ),
    "a state of another branch goes": (
        "if node.tokens[: len(tail)] == tail and not _covers(parent, tail, None)",
        "if True",
    ),
    "a state further than the limit": ("min(PAGE_TOKENS, limit - node.depth)", "PAGE_TOKENS"),
    "the shortest state": ("range(longest, 0, -1)", "range(1, longest + 1)"),
    "states are found in the last page only": (
        "            node = node.parent\n        return None",
        "            node = None\n        return None",
    ),
    "a used state is not remembered": (
        "        self._states.move_to_end((node, tail))\n        slot,",
        "        slot,",
    ),
    "the newest state goes first": ("next(iter(self._states))", "next(reversed(self._states))"),
    "a slot is lost": (
        "            self.give_slot(slot)\n            return False",
        "            return False",
    ),
    "an end that has grown stays": ("        self._remove(own_tail)\n", "        pass\n"),
    "shorter ends stay": ("            self._drop_shorter(child)\n", ""),
    "shorter ends go while they are used": ("if shorter and not other.pins and", "if shorter and"),
    "an empty root stays": ("            del self._roots[node.salt]", "            pass"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_injected_bug_is_caught(name: str) -> None:
    good, bad = MUTANTS[name]
    assert SOURCE.count(good) >= 1, "the source has changed: adapt the bug"
    module = types.ModuleType("mutant_radix")
    sys.modules["mutant_radix"] = module
    exec(compile(SOURCE.replace(good, bad, 1), "mutant_radix", "exec"), module.__dict__)
    caught = 0
    for seed in range(40):
        try:
            play_out(module, seed, stateful=bool(seed % 2))
        except (AssertionError, KeyError, IndexError, AttributeError, RuntimeError, ValueError):
            caught += 1
            break
    assert caught, f"the suite does not notice: {name}"
