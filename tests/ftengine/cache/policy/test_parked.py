"""Parked texts against a slow model after every operation, and bugs that this must catch."""

from __future__ import annotations

import random
import sys
import types
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ftengine.cache.policy import parked, parked_tree
from ftengine.cache.policy.radix import Match, Node
from tests.ftengine.cache.policy.naive_parked import NaiveParked, Text

SOURCES = {
    module.__name__: Path(str(module.__file__)).read_text("utf-8")
    for module in (parked_tree, parked)
}
PAGE = 16


class FakeDisk:
    """Files in a dictionary. Writing and reading fail as often as asked."""

    def __init__(self, play: Play, module: Any, faults: float) -> None:
        self.play = play
        self.module = module
        self.faults = faults
        self.files: dict[int, list[Any]] = {}
        self.damaged: set[int] = set()
        self.next = -2

    def size(self, items: Sequence[Any]) -> int:
        return len(items)

    def write(self, items: Sequence[Any], rank: int) -> Any:
        if self.play.rng.random() < self.faults:
            return None
        assert rank not in self.files, "a file was overwritten"
        self.files[rank] = [self.play.rows[bool(kept.tail), kept.row] for kept in items]
        return self.module.ParkedFile(rank, len(items))

    def read(self, file: Any, items: Sequence[Any], reading: None) -> list[int] | None:
        assert file.rank not in self.damaged, "a damaged file was read again"
        if self.play.rng.random() < self.faults:
            self.damaged.add(file.rank)
            return None
        numbers = []
        for kept in items:
            self.play.rows[bool(kept.tail), self.next] = self.files[file.rank][kept.place]
            numbers.append(self.next)
            self.next -= 1
        return numbers

    def remove(self, file: Any) -> None:
        del self.files[file.rank]


class Play:
    """Random evictions and prompts. Rows remember what was put there."""

    def __init__(self, module: Any, seed: int, stateful: bool, disk: float | None = None) -> None:
        self.rng = random.Random(seed)
        self.stateful = stateful
        rows = self.rng.choice((0, 1, 3, 4, 8)) if disk is None else self.rng.choice((1, 3, 8))
        states = self.rng.choice((1, 4)) if stateful else 0
        self.disk = None if disk is None else FakeDisk(self, module, disk)
        limits = module.ParkLimits(rows, states, 10_000 if disk == 0 else self.rng.choice((2, 12)))
        self.texts = module.ParkedTexts(limits, stateful, self.disk)
        forgets = disk is None
        self.naive = NaiveParked(rows if forgets else 10**6, states if forgets else 10**6, stateful)
        self.rows: dict[tuple[bool, int], tuple[str, Text]] = {}
        self.nodes: dict[tuple[str, Text], Node] = {}
        self.known_texts: list[tuple[str, Text]] = [("", (0,))]

    def run(self, count: int) -> None:
        for _ in range(count):
            self.rng.choice((self.evict_page, self.evict_page, self.evict_state, self.ask))()
            self.texts.check_integrity()
            if self.disk is None:
                self.check_rows(self.texts._pages.used, self.naive.pages)
                self.check_rows(self.texts._states.used, self.naive.states)

    def check_rows(self, used: Any, expected: dict[tuple[str, Text], int]) -> None:
        found = [(kept.node.salt, (*kept.node.text(), *kept.tail)) for kept in used]
        assert found == sorted(expected, key=lambda key: expected[key])

    def new_text(self) -> tuple[str, Text]:
        salt, text = self.rng.choice(self.known_texts[-10:])
        if self.rng.random() < 0.1:
            salt = self.rng.choice("ab")
        if self.rng.random() < 0.25:
            return salt, text
        keep = self.rng.randint(0, len(text))
        more = tuple(self.rng.choices((0, 1), k=self.rng.randint(1, 24)))
        self.known_texts.append((salt, (text[:keep] + more)[:80]))
        return self.known_texts[-1]

    def node(self, salt: str, text: Text) -> Node:
        """The device's page that ends `text`; now and then it has been made anew since."""
        if (salt, text) not in self.nodes or self.rng.random() < 0.1:
            first = (len(text) - 1) // PAGE * PAGE
            above = self.node(salt, text[:first]) if first else Node(None, (), -1, salt)
            self.nodes[salt, text] = Node(above, text[first:], 0, salt)
        return self.nodes[salt, text]

    def evict_page(self) -> None:
        salt, text = self.new_text()
        ends = [*range(PAGE, len(text), PAGE), len(text)]
        for end in reversed(ends[self.rng.randrange(len(ends)) :]):
            row = self.texts.page_evicted(self.node(salt, text[:end]))
            if row is not None:
                self.rows[False, row] = (salt, text[:end])
            self.naive.page_evicted(salt, text[:end])

    def evict_state(self) -> None:
        if not self.stateful:
            return
        salt, text = self.new_text()
        text = text[: self.rng.randint(max(len(text) - 9, 1), len(text))]
        first = (len(text) - 1) // PAGE * PAGE
        above = self.node(salt, text).parent
        assert above is not None
        row = self.texts.state_evicted(above, text[first:])
        if row is not None:
            self.rows[True, row] = (salt, text)
        self.naive.state_evicted(salt, text)

    def ask(self) -> None:
        salt, text = self.new_text()
        known = self.rng.choice((0, 0, self.rng.randint(0, len(text))))
        whole = known // PAGE * PAGE
        reached = self.rng.randint(0, known) if self.stateful else known
        match = Match(Node(None, (), -1, salt), reached, num_known=known, num_whole=whole)
        found = self.texts.find(salt, text, match)
        expected = self.naive.find(salt, text, whole, known, reached)
        self.check(salt, text, reached, found, expected)
        self.texts.let_go()

    def check(self, salt: str, text: Text, reached: int, found: Any, expected: Any) -> None:
        if found is not None:
            for kept, row in found.pages:
                assert self.rows[False, row] == (salt, kept.node.text())
            assert found.num_tokens > reached
            if found.state is not None:
                kept, row = found.state
                assert self.rows[True, row] == (salt, text[: found.num_tokens])
        if self.disk is not None and self.disk.faults:
            assert found is None or expected is not None
            assert found is None or found.num_tokens <= expected[0]
            return
        if found is None or expected is None:
            assert found is expected
            return
        end, pages, state = expected
        assert found.num_tokens == end
        assert [kept.node.text() for kept, _ in found.pages] == pages
        assert (found.state is None) == (state is None)


def play_out(module: Any, seed: int, stateful: bool, disk: float | None, steps: int = 120) -> None:
    Play(module, seed, stateful, disk).run(steps)


@pytest.mark.parametrize("disk", [None, 0.0, 0.2])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_parked_texts_do_what_the_slow_model_does(
    seed: int, stateful: bool, disk: float | None
) -> None:
    play_out(parked, seed, stateful, disk)


@pytest.mark.slow
@pytest.mark.parametrize("disk", [None, 0.0, 0.2])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("seed", range(100, 160))
def test_parked_texts_do_what_the_slow_model_does_at_length(
    seed: int, stateful: bool, disk: float | None
) -> None:
    play_out(parked, seed, stateful, disk, 500)


MUTANTS = {
    "the newest page goes first": (
        "next((item for item in rows.used if",
        "next((item for item in reversed(rows.used) if",
    ),
    "a page evicted again is not remembered": (
        "            self._pages.touch(spot.page)\n            return None",
        "            return None",
    ),
    "a state evicted again is not remembered": (
        "            self._states.touch(kept)\n            return None",
        "            return None",
    ),
    "a row is lost": ("            self.free.append(kept.row)\n", ""),
    "what is found is not remembered": (
        "            self._rows(kept).touch(kept)\n",
        "            pass\n",
    ),
    "salts are forgotten": ("self._roots.get(salt)", 'self._roots.get("")'),
    "a gap is walked over": (
        "if child is None or (end > whole and child.page is None):",
        "if child is None:",
    ),
    "a page without bytes is chosen": (
        "        if child.page is not None:\n            best",
        "        if True:\n            best",
    ),
    "shorter ends stay": ("                self._forget(other.page)\n", "                pass\n"),
    "ends that others hold are parked": ("spot.page is None and is_covered(spot)", "False"),
    "what making room took out is filled": (
        "        spot = self._spot(node)  # making",
        "        # making",
    ),
    "stale links are followed": ("at.parked is None or at.parked.gone", "at.parked is None"),
    "a state beyond what is known": ("min(PAGE_TOKENS, limit - node.depth)", "PAGE_TOKENS"),
    "the shortest state": (
        "range(min(PAGE_TOKENS, limit - node.depth), 0, -1)",
        "range(1, min(PAGE_TOKENS, limit - node.depth) + 1)",
    ),
    "what the device has comes back too": (
        "for node in way[whole // PAGE_TOKENS + 1 :]",
        "for node in way[1:]",
    ),
    "a damaged file stays": (
        "                self._drop_file(file)\n                return None",
        "                return None",
    ),
    "files grow over their limit": (
        "        fits = self.file_bytes + size <= self.limits.file_bytes\n",
        "        fits = True\n",
    ),
    "files are not counted": (
        "place)\n        self._files[file] = None\n        self.file_bytes += file.num_bytes\n",
        "place)\n        self._files[file] = None\n",
    ),
    "pages in files lose their places": ("in_file(kept, file, place)", "in_file(kept, file, 0)"),
    "empty places stay": ("        self._prune(kept.node)\n", "        pass\n"),
    "empty files stay": (
        "            if not file.kept:\n                self._drop_file(file)\n        if kept"
        ".tail",
        "        if kept.tail",
    ),
}


def mutant(good: str, bad: str) -> types.ModuleType:
    """Both modules anew, one of them with a bug."""
    (changed,) = (name for name, source in SOURCES.items() if good in source)
    for name, source in SOURCES.items():
        text = source.replace(good, bad, 1) if name == changed else source
        text = text.replace("policy.parked_tree import", "policy.mutant_parked_tree import")
        module = types.ModuleType(name.replace("policy.parked", "policy.mutant_parked"))
        sys.modules[module.__name__] = module
        exec(compile(text, module.__name__, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", MUTANTS)
def test_every_injected_bug_is_caught(name: str) -> None:
    module = mutant(*MUTANTS[name])
    for seed in range(60):
        try:
            play_out(module, seed, bool(seed % 2), (None, 0.0, 0.2)[seed % 3], 150)
        except (AssertionError, LookupError, AttributeError, RuntimeError, ValueError):
            return
    raise AssertionError(f"the suite does not notice: {name}")


def text_of(number: int, pages: int = 4) -> Text:
    return tuple(number * 100 + at // PAGE for at in range(pages * PAGE))


def evict(play: Play, text: Text) -> list[int | None]:
    """As the device does: the last page first. Returns the rows."""
    return [
        play.texts.page_evicted(play.node("", text[:end])) for end in range(len(text), 0, -PAGE)
    ]


def new_play(limits: parked.ParkLimits, stateful: bool = False) -> Play:
    play = Play(parked, 1, stateful, 0.0)
    assert play.disk is not None
    play.texts = parked.ParkedTexts(limits, stateful, play.disk)
    play.rows = defaultdict(lambda: ("", ()))
    return play


def found_pages(play: Play, text: Text) -> int:
    found = play.texts.find("", text, Match(Node(None, (), -1, ""), 0))
    return 0 if found is None else len(found.pages)


def test_what_comes_back_from_files_stops_nothing_from_being_parked() -> None:
    """Rows that are waited for stay; those of others give way as ever."""
    play = new_play(parked.ParkLimits(page_rows=3, file_bytes=100))
    evict(play, text_of(1))
    evict(play, text_of(2, pages=3))
    assert found_pages(play, text_of(1)) == 4  # more than there are rows: they lie in files
    assert None not in evict(play, text_of(3, pages=2))
    play.texts.let_go()
    play.texts.check_integrity()
    assert found_pages(play, text_of(3)) == 2


def test_a_state_is_written_with_what_leads_to_it() -> None:
    """Time for half of it is enough for the text that was used last."""
    play = new_play(parked.ParkLimits(page_rows=16, state_rows=4, file_bytes=100), stateful=True)
    for number in (1, 2):
        text = text_of(number)
        above = play.node("", text[: 3 * PAGE])
        assert play.texts.state_evicted(above, text[3 * PAGE :]) is not None
        evict(play, text)
    left = [True, True, False]
    assert not play.texts.write_all(lambda: left.pop(0))
    assert play.disk is not None
    kept = [len(rows) for rows in play.disk.files.values()]
    assert sorted(kept) == [1, 4]
    first = play.texts._roots[""].children[text_of(2)[:PAGE]].page
    assert first is not None
    assert first.file is not None
