"""What the prefix tree must do, written the slow and obvious way: lists of texts, no tree.

A page is known by the tokens up to its end; recency is a counter; every question is a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = 16
Text = tuple[int, ...]
Key = tuple[str, Text]


@dataclass
class NaiveTree:
    """pages: (salt, tokens up to the end of a page) -> when it was last used."""

    num_slots: int
    pages: dict[Key, int] = field(default_factory=dict)
    states: dict[Key, int] = field(default_factory=dict)
    pins: dict[int, set[Key]] = field(default_factory=dict)
    now: int = 0

    def match(self, salt: str, tokens: Text, limit: int) -> tuple[int, int]:
        """(tokens reused, tokens known)."""
        known = max((self._common(key, salt, tokens[:limit]) for key in self.pages), default=0)
        if not self.num_slots:
            return known, known
        fits = [key for key in self.states if key[0] == salt and len(key[1]) <= known]
        fits = [key for key in fits if tokens[: len(key[1])] == key[1]]
        best = max(fits, key=lambda key: len(key[1]), default=None)
        if best is None:
            return 0, known
        self.states[best] = self._tick()
        return len(best[1]), known

    def pin(self, holder: int, salt: str, tokens: Text) -> None:
        """The whole pages of `tokens`, and a last one that holds just its end, are in use."""
        ends = [tokens[:at] for at in range(PAGE, len(tokens) + 1, PAGE)]
        ends += [tokens] if len(tokens) % PAGE and (salt, tokens) in self.pages else []
        self.pins[holder] = {(salt, end) for end in ends}

    def unpin(self, holder: int) -> None:
        """They were used just now, the last page first."""
        keys = self.pins.pop(holder)
        for key in sorted(keys, key=lambda key: -len(key[1])):
            if not self.pinned(key):
                self.pages[key] = self._tick()

    def insert(self, holder: int, salt: str, tokens: Text) -> None:
        """Everything up to the end of `tokens` is known and in use by its holder."""
        old = self.pins.get(holder, set())
        self.pins[holder] = set()
        for at in range(PAGE, len(tokens) + 1, PAGE):
            self.pages.setdefault((salt, tokens[:at]), 0)
        rest = len(tokens) % PAGE
        self.pins[holder] = {(salt, tokens[:at]) for at in range(PAGE, len(tokens) + 1, PAGE)}
        same = any(len(end) == len(tokens) and (salt, end) == (salt, tokens) for salt, end in old)
        covered = any(self._common(key, salt, tokens) == len(tokens) for key in self.pages)
        if rest and (same or not covered):
            self.pages.setdefault((salt, tokens), 0)
            self.pins[holder].add((salt, tokens))
        elif rest and covered and not same:
            pass
        for key in old - self.pins[holder]:  # the end it had has grown
            if len(key[1]) % PAGE and not self.pinned(key):
                self._forget(key)
        for new in self.pins[holder] - old:
            self._drop_shorter(new)

    def attach(self, salt: str, tokens: Text) -> bool:
        """Keep a state. False: there is one."""
        if (salt, tokens) in self.states:
            return False
        self.states[salt, tokens] = self._tick()
        return True

    def make_room(self, taken: int) -> bool:
        """Drop the oldest state when `taken` slots and the kept states are all there are."""
        if len(self.states) + taken < self.num_slots:
            return True
        if not self.states:
            return False
        del self.states[min(self.states, key=lambda key: self.states[key])]
        return True

    def evict(self, count: int) -> int:
        """Drop pages that nobody uses and that nothing stands on, the oldest first."""
        for done in range(count):
            free = [key for key in self.pages if not self.pinned(key) and self._is_leaf(key)]
            if not free:
                return done
            self._forget(min(free, key=lambda key: self.pages[key]))
        return count

    def pinned(self, key: Key) -> bool:
        """Whether anybody uses a page."""
        return any(key in keys for keys in self.pins.values())

    def _tick(self) -> int:
        self.now += 1
        return self.now

    def _common(self, key: Key, salt: str, tokens: Text) -> int:
        if key[0] != salt:
            return 0
        first = (len(key[1]) - 1) // PAGE * PAGE
        if key[1][:first] != tokens[:first] or len(tokens) <= first:
            return 0
        at = first
        while at < min(len(key[1]), len(tokens)) and key[1][at] == tokens[at]:
            at += 1
        return at if at > first else 0

    def _is_leaf(self, key: Key) -> bool:
        salt, end = key
        below = (item for item in self.pages if item[0] == salt and len(item[1]) > len(end))
        return len(end) % PAGE > 0 or not any(item[1][: len(end)] == end for item in below)

    def _drop_shorter(self, key: Key) -> None:
        salt, end = key
        first = (len(end) - 1) // PAGE * PAGE
        for other in list(self.pages):
            inside = other[0] == salt and first < len(other[1]) < len(end)
            if inside and end[: len(other[1])] == other[1] and not self.pinned(other):
                self._forget(other)

    def _forget(self, key: Key) -> None:
        del self.pages[key]
        for state in list(self.states):
            held = any(
                self._common(page, state[0], state[1]) == len(state[1]) for page in self.pages
            )
            if not held:
                del self.states[state]
