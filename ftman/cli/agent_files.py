"""Laying our entries into other programs' settings: nothing of theirs is lost, a copy is kept.

Files that are not plain JSON (comments, a typing error) are not touched: the person is told what to
add. What is written is decided in agents.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ftman import files
from ftman.cli.agents import JsonEntry, WholeFile
from ftman.clock import SYSTEM, Clock
from ftman.errors import ConflictError

LIMIT_BYTES = 4 << 20
_BEFORE, _AFTER = ".before-ft-", ".after-ft-"


@dataclass(frozen=True)
class Change:
    """One file as it will be. `old` None = it does not exist yet."""

    path: Path
    old: bytes | None
    new: bytes

    @property
    def needed(self) -> bool:
        """False when the file says all this already."""
        return self.old != self.new


def change_for(wanted: JsonEntry | WholeFile) -> Change:
    """What a file must become.   Raises: ConflictError when it cannot be read or is not JSON."""
    path = wanted.path.resolve()  # a link into somebody's collection of settings stays a link
    old = _content(path)
    if isinstance(wanted, WholeFile):
        return Change(path, old, wanted.text.encode())
    present = _object(path, old, wanted) if old and old.strip() else {}
    merged = _merged(_merged(wanted.defaults, present), wanted.values)
    if old is not None and merged == present:
        return Change(path, old, old)
    return Change(path, old, (json.dumps(merged, indent=2, ensure_ascii=False) + "\n").encode())


def apply(change: Change, clock: Clock = SYSTEM) -> Path | None:
    """Write it; returns where the old content was kept.   Raises: ConflictError."""
    try:
        kept = _backup(change, clock)
        files.write_atomic(change.path, change.new)
    except OSError as error:
        raise ConflictError(
            f"{change.path} cannot be written: {error.strerror or error}",
            hint="Nothing was changed. Check who owns the file and its folder.",
        ) from None
    return kept


def restore(
    wanted: JsonEntry | WholeFile, clock: Clock = SYSTEM
) -> tuple[Path, Path | None] | None:
    """Bring back what a file was before ft first wrote it; None when there is nothing to undo.

    What stands there now is kept beside it, so that nothing is lost: returned with the path, second
    None when the file is gone, as it was.   Raises: ConflictError.
    """
    path = wanted.path.resolve()
    now = _content(path)
    kept = sorted(path.parent.glob(f"{path.name}{_BEFORE}*"))
    if now is None or not (kept or _holds(now, wanted)):
        return None
    try:
        aside = path.with_name(f"{path.name}{_AFTER}{_stamp(clock)}")
        files.rename(path, aside)
        if kept:
            files.rename(kept[0], path)
    except OSError as error:
        raise ConflictError(
            f"{path} cannot be restored: {error.strerror or error}",
            hint=f"What was there before lies in {kept[0] if kept else path.parent}.",
        ) from None
    return aside, path if kept else None


def _holds(now: bytes, wanted: JsonEntry | WholeFile) -> bool:
    """Whether a file without a copy from before is one that ft made."""
    if isinstance(wanted, WholeFile):
        return now.startswith(b"# Written by ft")
    return set(_object(wanted.path, now, wanted)) <= {*wanted.values, *wanted.defaults}


def _stamp(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.wall(), timezone.utc).strftime("%Y%m%d-%H%M%S")


def _backup(change: Change, clock: Clock) -> Path | None:
    if change.old is None:
        return None
    kept = change.path.with_name(f"{change.path.name}{_BEFORE}{_stamp(clock)}")
    files.write_atomic(kept, change.old)
    return kept


def _content(path: Path) -> bytes | None:
    try:
        return files.read_bytes(path, limit=LIMIT_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConflictError(
            f"{path} cannot be read: {error.strerror or error}",
            hint="Check who owns it, then try again.",
        ) from None


def _object(path: Path, old: bytes, wanted: JsonEntry) -> dict[str, Any]:
    try:
        value = json.loads(old.decode("utf-8-sig"))
    except ValueError:
        value = None
    if isinstance(value, dict):
        return value
    raise ConflictError(
        f"{path} is not a plain JSON object, so ft does not touch it",
        hint="Add this to it yourself:\n" + json.dumps(wanted.values, indent=2),
    )


def _merged(present: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(present)
    for name, value in wanted.items():
        old = found.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            found[name] = _merged(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            found[name] = _joined(old, value)
        else:
            found[name] = value
    return found


def _joined(present: list[Any], wanted: list[Any]) -> list[Any]:
    """The list with our entries of the same identity replaced, and new ones at its end."""
    ours = {_identity(entry): entry for entry in wanted}
    kept = [ours.pop(_identity(entry), entry) for entry in present]
    return [*kept, *ours.values()]


def _identity(entry: Any) -> str:
    # Somebody else's model of the same id behind another key is another model.
    if isinstance(entry, Mapping):
        return json.dumps([entry.get("id"), entry.get("envKey")])
    return json.dumps(entry, sort_keys=True)
