"""Faults against invariants and service levels, as a table.

Printed at the end of a run that had fault tests, and by `python -m tests.e2e.faults.table` from
what the last runs left in build/faults.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable

from tests.e2e.faults.ledger import Level, Record, read_all

INVARIANTS = {
    "I1": "visible models are whole",
    "I2": "nothing without an owner",
    "I3": "acknowledged work is kept",
    "I4": "each request ends once",
    "I5": "no process or file is left",
    "I6": "nothing written outside",
    "I7": "healthy means a token",
    "I8": "memory and files go back",
}
LEVELS = {
    "R1": "progress lost by a kill",
    "R2": "engine death",
    "R3": "wedged engine",
    "R4": "client gone",
    "R5": "sign of life",
    "R6": "manager restart",
    "R7": "unhandled errors",
    "R8": "breaker",
    "R9": "other calls under load",
    "R10": "signals",
}
_FILE = re.compile(r"test_(f(\d+)_)?(\w+)\.py")


def row_of(test: str) -> tuple[int, str, str]:
    """Sort key, id and name of the row that a test belongs to."""
    match = _FILE.search(test)
    if match is None:
        return 99, "", test
    number, words = match.group(2), match.group(3).replace("_", " ")
    return (int(number), f"F{int(number)}", words) if number else (98, "", words)


def lines_of(records: Iterable[Record]) -> list[str]:
    """The table; empty without records."""
    rows: dict[tuple[int, str, str], list[Record]] = defaultdict(list)
    levels: dict[str, list[tuple[str, Level]]] = defaultdict(list)
    for record in records:
        rows[row_of(record.test)].append(record)
        for key, measured in record.levels.items():
            name, _, what = key.partition(" ")
            levels[name].append((what, measured))
    if not rows:
        return []
    head = f"{'fault':<40}{'points':>7}" + "".join(f"{name:>6}" for name in INVARIANTS)
    lines = [head, *(_row(key, rows[key]) for key in sorted(rows)), ""]
    lines.append("I: times checked, - not in this test.  " + _legend(INVARIANTS))
    lines.append("")
    for name, title in LEVELS.items():
        lines += _level(name, title, levels.get(name, []))
    return lines


def _row(key: tuple[int, str, str], records: list[Record]) -> str:
    label = f"{key[1]:<4}{key[2]}"[:39]
    cells = []
    for name in INVARIANTS:
        held = sum(record.invariants.get(name, [0, 0])[0] for record in records)
        broken = sum(record.invariants.get(name, [0, 0])[1] for record in records)
        cells.append(f"{broken} bad" if broken else str(held or "-"))
    failed = [record.test.rpartition("::")[2] for record in records if not record.passed]
    points = sum(record.points for record in records)
    tail = f"  FAILED: {', '.join(failed)}" if failed else ""
    return f"{label:<40}{points:>7}" + "".join(f"{cell:>6}" for cell in cells) + tail


def _legend(names: dict[str, str]) -> str:
    return ", ".join(f"{name} {text}" for name, text in names.items())


def _level(name: str, title: str, found: list[tuple[str, Level]]) -> list[str]:
    if not found:
        return [f"{name:<4}{title:<26}not measured in this run"]
    merged: dict[str, Level] = {}
    for what, item in found:
        known = merged.setdefault(what, Level(item.worst, item.limit, 0))
        known.worst = max(known.worst, item.worst)
        known.count += item.count
    lines = []
    for what, item in sorted(merged.items()):
        over = "  OVER" if item.worst > item.limit else ""
        shown = f"worst {item.worst:.6g} of {item.limit:g} ({item.count} times){over}"
        lines.append(f"{name:<4}{title:<26}{what}: {shown}")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines_of(read_all()) or ["no fault test has run yet"]) + "\n")
