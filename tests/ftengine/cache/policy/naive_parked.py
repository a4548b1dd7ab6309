"""What parked texts must do, written the slow and obvious way: dictionaries of texts, no tree."""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = 16
Text = tuple[int, ...]
Key = tuple[str, Text]


@dataclass
class NaiveParked:
    """pages, states: (salt, tokens up to the end) -> when it was last used."""

    page_rows: int
    state_rows: int
    stateful: bool
    pages: dict[Key, int] = field(default_factory=dict)
    states: dict[Key, int] = field(default_factory=dict)
    now: int = 0

    def page_evicted(self, salt: str, text: Text) -> None:
        """The device gives up the page that ends `text`."""
        key = (salt, text)
        if key not in self.pages:
            longer = (o for o in self._beside(key) if len(o[1]) > len(text))
            if any(other[1][: len(text)] == text for other in longer):
                return
            if not self._place(self.pages, self.page_rows, key):
                return
            for other in self._beside(key):
                if len(other[1]) < len(text) and text[: len(other[1])] == other[1]:
                    del self.pages[other]
        self.pages[key] = self._tick()

    def state_evicted(self, salt: str, text: Text) -> None:
        """The device gives up the state after `text`."""
        key = (salt, text)
        if key in self.states or self._place(self.states, self.state_rows, key):
            self.states[key] = self._tick()

    def find(
        self, salt: str, tokens: Text, whole: int, known: int, reached: int
    ) -> tuple[int, list[Text], Text | None] | None:
        """(how far, pages to bring back, state to bring back)."""
        at, texts = whole, []
        while (salt, tokens[: at + PAGE]) in self.pages and at + PAGE <= len(tokens):
            at += PAGE
            texts.append(tokens[:at])
        end = at if texts else known
        best = max(
            (text for text in self._starting(salt, tokens[:at])),
            key=lambda text: (_common(text, tokens), text),
            default=None,
        )
        if best is not None and _common(best, tokens) > max(at, end):
            end = _common(best, tokens)
            texts.append(best)
        state = None
        if self.stateful:
            fits = [
                text
                for owner, text in self.states
                if owner == salt and reached < len(text) <= end and tokens[: len(text)] == text
            ]
            if not fits:
                return None
            state = max(fits, key=len)
            end = len(state)
            texts = [] if end <= known else texts
            texts = [text for text in texts if (len(text) - 1) // PAGE * PAGE < end]
        if end <= reached:
            return None
        if state is not None:
            self.states[salt, state] = self._tick()
        for text in reversed(texts):
            self.pages[salt, text] = self._tick()
        return end, texts, state

    def _place(self, kind: dict[Key, int], rows: int, key: Key) -> bool:
        if len(kind) >= rows and kind:
            del kind[min(kind, key=lambda item: kind[item])]
        if len(kind) < rows:
            kind[key] = 0
            return True
        return False

    def _beside(self, key: Key) -> list[Key]:
        """Other pages behind the same text."""
        salt, text = key
        first = (len(text) - 1) // PAGE * PAGE
        return [
            other
            for other in self.pages
            if other != key
            and other[0] == salt
            and (len(other[1]) - 1) // PAGE * PAGE == first
            and other[1][:first] == text[:first]
        ]

    def _starting(self, salt: str, text: Text) -> list[Text]:
        """Texts of pages behind `text`."""
        return [
            other
            for owner, other in self.pages
            if owner == salt
            and (len(other) - 1) // PAGE * PAGE == len(text)
            and other[: len(text)] == text
        ]

    def _tick(self) -> int:
        self.now += 1
        return self.now


def _common(first: Text, second: Text) -> int:
    count = 0
    while count < min(len(first), len(second)) and first[count] == second[count]:
        count += 1
    return count
