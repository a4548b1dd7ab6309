"""What of a conversion is durable: one line per commit, appended after the data was fsynced.

{"job": fingerprint}                      first line
{"done": [[a, b], ...], "staged": [...]}  piece numbers, half open; a torn last line is ignored
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ftman import files

JOURNAL_NAME = "journal.ndjson"
_LIMIT_BYTES = 256 << 20


class Journal:
    """The journal of one target folder. `done` and `staged` hold piece numbers."""

    def __init__(self, target: Path, fingerprint: str):
        self.path = target / JOURNAL_NAME
        self.done: set[int] = set()
        self.staged: set[int] = set()
        lines, intact_bytes = _read_lines(self.path)
        self.resumed = bool(lines) and lines[0].get("job") == fingerprint
        if self.resumed:
            for line in lines[1:]:
                self.done |= _numbers(line.get("done"))
                self.staged |= _numbers(line.get("staged"))
            self._writer = files.Writer(self.path)
            self._writer.truncate(intact_bytes)
        else:
            _clear(target)
            files.make_dir(target)
            self._writer = files.Writer(self.path, truncate=True)
            self._append({"job": fingerprint})
            files.sync_dir(target)

    def commit(self, done: Iterable[int], staged: Iterable[int]) -> None:
        """Record pieces whose bytes are durable."""
        done, staged = set(done), set(staged)
        line: dict[str, Any] = {"done": _ranges(done)}
        if staged:
            line["staged"] = _ranges(staged)
        self._append(line)
        self.done |= done
        self.staged |= staged

    def close(self) -> None:
        """Close the file; it stays for the next start."""
        self._writer.close()

    def remove(self) -> None:
        """The conversion is complete."""
        self.close()
        files.unlink(self.path)

    def _append(self, line: dict[str, Any]) -> None:
        self._writer.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._writer.sync()


def _read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Intact lines and the number of bytes they take."""
    try:
        data = files.read_bytes(path, limit=_LIMIT_BYTES)
    except OSError:
        return [], 0
    lines, intact = [], 0
    for raw in data.split(b"\n")[:-1]:
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            break
        if not isinstance(value, dict):
            break
        lines.append(value)
        intact += len(raw) + 1
    return lines, intact


def _clear(target: Path) -> None:
    """Nothing of another job may survive in the folder."""
    if target.is_dir():
        for item in target.iterdir():
            files.remove_tree(item)


def _numbers(value: Any) -> set[int]:
    found: set[int] = set()
    for start, end in value or ():
        found.update(range(start, end))
    return found


def _ranges(numbers: set[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number:
            found[-1][1] = number + 1
        else:
            found.append([number, number + 1])
    return found
