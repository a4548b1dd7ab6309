"""Text that arrives in pieces, read by a parser written as a generator: it yields to get more.

What a parser does depends on the text alone, never on where the pieces were cut: a mark that is
only half there is waited for. Not here: what the text means.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache

Steps = Generator[None, None, None]
"""A parser that is run a piece at a time; each `yield` waits for more text."""

_SPACE = " \t\r\n"


class BrokenCallError(ValueError):
    """A tool call that does not follow its format; the text says where it went wrong."""


class CutCallError(BrokenCallError):
    """The text ended inside a tool call."""

    def __init__(self) -> None:
        super().__init__("it was cut off")


class Reader:
    """The text still to be read. position counts the characters read so far."""

    def __init__(self) -> None:
        self.buffer = ""
        self.ended = False
        self.position = 0
        self._recorded: list[str] | None = None

    def record(self, text: str = "") -> None:
        """Remember what is read from here on, as if `text` had just been read."""
        self._recorded = [text]

    def recorded(self) -> str:
        """What was read since `record`; nothing is remembered from here on."""
        text, self._recorded = "".join(self._recorded or ()), None
        return text

    def take(self, count: int) -> str:
        """Read characters that are there."""
        text, self.buffer = self.buffer[:count], self.buffer[count:]
        self.position += len(text)
        if self._recorded is not None:
            self._recorded.append(text)
        return text

    def until(
        self, marks: tuple[str, ...], emit: Callable[[str], None]
    ) -> Generator[None, None, str]:
        """Hand text to `emit` up to the first of `marks`; returns that mark, "" at the end."""
        known = mark_set(marks)
        while True:
            found = known.pattern.search(self.buffer)
            if found is not None:
                if found.start():
                    emit(self.take(found.start()))
                return self.take(len(found.group()))
            safe = len(self.buffer) - (0 if self.ended else known.held(self.buffer))
            if safe:
                emit(self.take(safe))
            if self.ended:
                return ""
            yield

    def peek(self) -> Generator[None, None, str]:
        """The next character, "" at the end."""
        while not self.buffer and not self.ended:
            yield
        return self.buffer[:1]

    def next(self) -> Generator[None, None, str]:
        """Read one character.   Raises: CutCallError at the end."""
        char = yield from self.peek()
        if not char:
            raise CutCallError
        return self.take(1)

    def space(self) -> Generator[None, None, str]:
        """Read white space; returns it."""
        read = []
        while True:
            rest = self.buffer.lstrip(_SPACE)
            read.append(self.take(len(self.buffer) - len(rest)))
            if rest or self.ended:
                return "".join(read)
            yield

    def literal(self, text: str) -> Generator[None, None, bool]:
        """Read `text` if it is what follows; tells whether it was."""
        while len(self.buffer) < len(text) and text.startswith(self.buffer) and not self.ended:
            yield
        if not self.buffer.startswith(text):
            return False
        self.take(len(text))
        return True

    def closing(self, text: str) -> Steps:
        """Read `text` if it is what follows, or the part of it that the reply ends with."""
        if not (yield from self.literal(text)) and self.ended and text.startswith(self.buffer):
            self.take(len(self.buffer))

    def one_of(self, texts: tuple[str, ...]) -> Generator[None, None, str]:
        """Read whichever of `texts` follows, none a prefix of another; "" when none does."""
        while not self.ended and any(
            len(self.buffer) < len(text) and text.startswith(self.buffer) for text in texts
        ):
            yield
        for text in texts:
            if self.buffer.startswith(text):
                return self.take(len(text))
        return ""

    def choose(self, *texts: str) -> Generator[None, None, str]:
        """Read whichever of `texts` follows.   Raises: BrokenCallError when none does."""
        found = yield from self.one_of(texts)
        if found:
            return found
        if self.ended and any(text.startswith(self.buffer) for text in texts):
            raise CutCallError
        raise BrokenCallError(f"{self.buffer[:20]!r} stands where {texts[0]!r} may")

    def expect(self, text: str) -> Steps:
        """Read `text`.   Raises: BrokenCallError when something else follows."""
        if not (yield from self.literal(text)):
            if self.ended and text.startswith(self.buffer):
                raise CutCallError
            raise BrokenCallError(f"{text!r} is missing before {self.buffer[:20]!r}")

    def collect(self, *marks: str, limit: int = 1 << 20) -> Generator[None, None, str]:
        """Read up to and over the first of `marks`; returns the text before it.

        Raises: CutCallError when none comes; BrokenCallError past `limit` characters.
        """
        parts: list[str] = []
        size = 0

        def emit(text: str) -> None:
            nonlocal size
            size += len(text)
            if size > limit:
                raise BrokenCallError(f"a part of it is longer than {limit} characters")
            parts.append(text)

        if not (yield from self.until(marks, emit)):
            raise CutCallError
        return "".join(parts)


class MarkSet:
    """Texts to look for, all at once; none may be the beginning of another."""

    def __init__(self, marks: tuple[str, ...]):
        self._marks = marks
        self._firsts = {mark[0] for mark in marks}
        self._longest = max(map(len, marks), default=1)
        self.pattern = re.compile("|".join(map(re.escape, marks)) or r"(?!)")

    def held(self, text: str) -> int:
        """How many last characters may be the start of a mark."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at] in self._firsts:
                tail = text[at:]
                if any(mark.startswith(tail) for mark in self._marks):
                    return len(tail)
        return 0


@lru_cache(maxsize=256)
def mark_set(marks: tuple[str, ...]) -> MarkSet:
    """The compiled form of some marks."""
    return MarkSet(marks)
