"""What the fault tests found: points, invariants, service levels. One file per test, for the table.

A check of invariants.py and a measurement note themselves here; table.py puts them together.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
FOLDER = Path(__file__).resolve().parents[3] / "build" / "faults"


@dataclass
class Level:
    """A service level as it was measured: the worst value, and what it is held against."""

    worst: float
    limit: float
    count: int = 1


@dataclass
class Record:
    """One test. invariants: id -> [times held, times broken]; levels: "R2 what" -> Level."""

    test: str
    points: int
    passed: bool = True
    wall_s: float = 0.0
    invariants: dict[str, list[int]] = field(default_factory=dict)
    levels: dict[str, Level] = field(default_factory=dict)


_records: list[Record] = []


@contextlib.contextmanager
def recording(test: str, points: int) -> Iterator[Record]:
    """Note what happens in here as one test's; the file is written at the end."""
    record = Record(test, points)
    _records.append(record)
    try:
        yield record
    finally:
        _records.remove(record)
        record.wall_s = time.time()
        FOLDER.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(test.encode()).hexdigest()[:20]
        (FOLDER / f"{name}.json").write_text(json.dumps(asdict(record)))


def checks(*names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Marks a function that fails when one of these invariants is broken."""

    def mark(check: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(check)
        def noted(*given: P.args, **named: P.kwargs) -> T:
            try:
                found = check(*given, **named)
            except AssertionError:
                _note(names, 1)
                raise
            _note(names, 0)
            return found

        return noted

    return mark


def level(name: str, what: str, value: float, limit: float) -> None:
    """A measurement of a service level: "R2", "stream ended, s", 0.2, 2. Larger is worse."""
    for record in _records:
        known = record.levels.setdefault(f"{name} {what}", Level(value, limit, 0))
        known.worst = max(known.worst, value)
        known.count += 1


def _note(names: tuple[str, ...], broken: int) -> None:
    for record in _records:
        for name in names:
            record.invariants.setdefault(name, [0, 0])[broken] += 1


def read_all(since_wall_s: float = 0.0) -> list[Record]:
    """Records written after a time, in the order of their tests."""
    found = []
    for path in FOLDER.glob("*.json"):
        value = json.loads(path.read_text())
        value["levels"] = {key: Level(**item) for key, item in value["levels"].items()}
        if value["wall_s"] >= since_wall_s:
            found.append(Record(**value))
    return sorted(found, key=lambda record: record.test)
