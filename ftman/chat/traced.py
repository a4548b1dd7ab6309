"""Text that remembers where each character came from: the template (0) or a value given to it.

A `Traced` string equals, hashes and compares like the plain one, so templates that test, search or
split content behave as usual; only its pieces keep their origin. Marker characters around content
were weighed and refused: they break `==`, `startswith` and slices. Operations that are not followed
exactly mark their whole result as a value (`taint`), never as template: the safe side.
Not here: the template languages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, SupportsIndex

TEMPLATE = 0
"""Origin of text the template's author wrote. Values have origins above it."""

OTHER_VALUE = 1
"""Origin of values that belong to no message: tools, documents, template settings."""

Runs = tuple[tuple[int, int], ...]
"""(length in characters, origin) pairs that cover a text in order; neighbours differ in origin."""

_FIRST = 2
_STRIDE = 64
_MAX_DEPTH = 64


class Traced(str):
    """A str with origins. Build with `trace` or `join`."""

    _runs: Runs

    def __new__(cls, text: str, runs: Runs) -> Traced:
        self = super().__new__(cls, text)
        self._runs = runs
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Traced:
        return _joined((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Traced:
        return _joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Traced:
        return _joined([self] * count.__index__())

    __rmul__ = __mul__

    def __mod__(self, value: Any) -> Traced:
        return percent(self, value)

    def __rmod__(self, other: str) -> Traced:
        return percent(other, self)

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return _cut(self, start, max(start, stop))
            return Traced(super().__getitem__(key), _pack(_flat(self)[key]))
        idx = key.__index__()
        char = super().__getitem__(idx)
        at = idx if idx >= 0 else idx + len(self)
        return Traced(char, _cut_runs(self._runs, at, at + 1))

    def __iter__(self) -> Iterator[str]:
        at = 0
        for length, origin in self._runs:
            for char in str.__getitem__(self, slice(at, at + length)):
                yield Traced(char, ((1, origin),))
            at += length

    def strip(self, chars: str | None = None, /) -> Traced:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Traced:
        return _cut(self, len(self) - len(super().lstrip(chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> Traced:
        return _cut(self, 0, len(super().rstrip(chars)))

    def removeprefix(self, prefix: str, /) -> Traced:
        return self[len(prefix) :] if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> Traced:
        return self[: len(self) - len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._located(super().rsplit(sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines, at = [], 0
        bare = super().splitlines()
        for whole, text in zip(super().splitlines(True), bare, strict=True):
            lines.append(_cut(self, at, at + len(whole if keepends else text)))
            at += len(whole)
        return list(lines)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        return self._parted(self.find(sep), sep, (self, self[:0], self[:0]))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        return self._parted(self.rfind(sep), sep, (self[:0], self[:0], self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Traced:
        if not old:
            return taint(super().replace(old, new, count), origin_within((self, new)))
        return _joined(_between(self._located(super().split(old, count), old), new))

    def join(self, parts: Iterable[str], /) -> Traced:
        return _joined(_between(list(parts), self))

    def upper(self) -> Traced:
        return self._mapped(super().upper())

    def lower(self) -> Traced:
        return self._mapped(super().lower())

    def title(self) -> Traced:
        return self._mapped(super().title())

    def capitalize(self) -> Traced:
        return self._mapped(super().capitalize())

    def casefold(self) -> Traced:
        return self._mapped(super().casefold())

    def swapcase(self) -> Traced:
        return self._mapped(super().swapcase())

    def _mapped(self, text: str) -> Traced:
        if len(text) == len(self):
            return Traced(text, self._runs)
        return taint(text, origin_within(self))

    def _located(self, pieces: list[str], sep: str | None) -> list[str]:
        """Cut `pieces`, which occur in order in this text, out of it with their origins."""
        found: list[str] = []
        at = 0
        for piece in pieces:
            if sep is None:
                at = self.find(piece, at)
            found.append(_cut(self, at, at + len(piece)))
            at += len(piece) + (len(sep) if sep else 0)
        return found

    def _parted(self, at: int, sep: str, absent: tuple[str, str, str]) -> tuple[str, str, str]:
        if at < 0:
            return absent
        return self[:at], self[at : at + len(sep)], self[at + len(sep) :]


def _followed(name: str) -> Callable[..., Traced]:
    """Wrap a str method whose result is not followed character by character."""
    unfollowed: Callable[..., str] = getattr(str, name)

    def method(self: Traced, *args: Any, **kwargs: Any) -> Traced:
        return taint(unfollowed(self, *args, **kwargs), origin_within((self, args, kwargs)))

    method.__name__ = name
    return method


for _name in ("center", "ljust", "rjust", "zfill", "expandtabs", "translate"):
    setattr(Traced, _name, _followed(_name))


def content_origin(message_idx: int) -> int:
    """Origin of what a message says."""
    return _FIRST + _STRIDE * message_idx


def detail_origin(message_idx: int) -> int:
    """Origin of the rest of a message (role, names)."""
    return _FIRST + _STRIDE * message_idx + 1


def thinking_origin(message_idx: int) -> int:
    """Origin of a message's reasoning."""
    return _FIRST + _STRIDE * message_idx + 2


def call_origin(message_idx: int, call_idx: int) -> int:
    """Origin of one of a message's tool calls; very many share the last one."""
    return _FIRST + _STRIDE * message_idx + min(3 + call_idx, _STRIDE - 1)


def message_of(origin: int) -> int:
    """Which message an origin belongs to, -1 when none."""
    return (origin - _FIRST) // _STRIDE if origin >= _FIRST else -1


def is_block(origin: int) -> bool:
    """Whether an origin is that of reasoning or a call: a block inside a message."""
    return origin >= _FIRST and (origin - _FIRST) % _STRIDE >= 2


def trace(text: str, origin: int) -> Traced:
    """Mark a whole text as coming from `origin`."""
    return Traced(text, ((len(text), origin),) if text else ())


def taint(text: str, origin: int) -> Traced:
    """Mark a derived text as value text; origin 0 (nothing traced went in) leaves it template."""
    return trace(text, origin)


def plain(text: str) -> str:
    """The same characters as a common str."""
    return str.__str__(text)


def runs_of(text: str) -> Runs:
    """Where each part of a text came from; plain text is template text."""
    if isinstance(text, Traced):
        return text._runs
    return ((len(text), TEMPLATE),) if text else ()


def join(parts: Iterable[str]) -> str:
    """Concatenate; the result is `Traced` only if a part is."""
    items = list(parts)
    if any(isinstance(item, Traced) for item in items):
        return _joined(items)
    return "".join(items)


def origin_within(value: Any, depth: int = 0) -> int:
    """The first value origin found inside a text, list, tuple or mapping; 0 when there is none."""
    if isinstance(value, str):
        return next((origin for _, origin in runs_of(value) if origin), TEMPLATE)
    if depth > _MAX_DEPTH:
        return OTHER_VALUE
    items: Iterable[Any] = ()
    if isinstance(value, Mapping):
        items = (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple | set | frozenset):
        items = value
    for item in items:
        if found := origin_within(item, depth + 1):
            return found
    return TEMPLATE


def percent(pattern: str, value: Any) -> Traced:
    """`pattern % value`; exact where every directive is a bare %s, else the result is tainted."""
    formatted = str.__mod__(pattern, value)
    values = value if isinstance(value, tuple) else (value,)
    pieces = Traced(pattern, runs_of(pattern)).split("%s")
    simple = "%" not in "".join(pieces) and not isinstance(value, Mapping)
    if not simple or len(pieces) != len(values) + 1:
        return taint(formatted, origin_within((pattern, value)))
    texts = [taint(str(item), origin_within(item)) if not isinstance(item, Traced) else item
             for item in values]  # fmt: skip
    return _joined([part for pair in zip(pieces, [*texts, ""], strict=True) for part in pair])


def _joined(parts: Iterable[str]) -> Traced:
    items = list(parts)
    runs: list[tuple[int, int]] = []
    for item in items:
        for length, origin in runs_of(item):
            if runs and runs[-1][1] == origin:
                runs[-1] = (runs[-1][0] + length, origin)
            else:
                runs.append((length, origin))
    return Traced("".join(items), tuple(runs))


def _between(items: list[str], sep: str) -> list[str]:
    mixed = [part for item in items for part in (sep, item)]
    return mixed[1:]


def _cut(text: Traced, start: int, stop: int) -> Traced:
    if start == 0 and stop == len(text):
        return text
    return Traced(str.__getitem__(text, slice(start, stop)), _cut_runs(text._runs, start, stop))


def _cut_runs(runs: Runs, start: int, stop: int) -> Runs:
    kept = []
    at = 0
    for length, origin in runs:
        low, high = max(at, start), min(at + length, stop)
        if low < high:
            kept.append((high - low, origin))
        at += length
        if at >= stop:
            break
    return tuple(kept)


def _flat(text: Traced) -> list[int]:
    return [origin for length, origin in text._runs for _ in range(length)]


def _pack(origins: list[int]) -> Runs:
    return tuple((len(list(group)), origin) for origin, group in groupby(origins))
