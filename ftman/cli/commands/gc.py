"""`ft gc [--explain] [--partials]`: remove blobs and weights that no model needs.

A running manager does it itself, since it alone knows what engines and jobs use; without one the
store is taken for that moment.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftman.catalog.catalog import Catalog
from ftman.catalog.lock import acquire_manager_lock
from ftman.cli.client import ManagerClient
from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes, human_duration
from ftman.clock import SYSTEM
from ftman.errors import NotFoundError, UnsupportedError
from ftman.pull.partials import drop_partials, list_partials

HEADER = ("WHAT", "SIZE", "LAST WRITTEN", "WHAT HAPPENS", "WHY")
SHOWN_NAME = 24


def run(args: argparse.Namespace, session: Session) -> int:
    """Collect garbage and say how much that freed; with --explain only say what it would do."""
    manager = session.running_manager()
    if args.explain:
        _explain(_garbage(manager, session), session)
        return 0
    freed = _by_manager(manager, args.partials) if manager else _alone(session, args.partials)
    if session.out.as_json:
        session.out.json_line({"freed": freed})
    else:
        session.out.data(f"freed {human_bytes(freed)}")
    return 0


def _by_manager(manager: ManagerClient, partials: bool) -> int:
    with manager:
        try:
            body = {"partials": partials}
            return int(manager.post("/api/ft/gc", body, patient=True).get("freed", 0))
        except NotFoundError:
            raise UnsupportedError(
                "the running manager cannot collect garbage",
                hint="Stop it first, then: ft gc",
            ) from None


def _alone(session: Session, partials: bool) -> int:
    paths = session.config.paths
    with acquire_manager_lock(paths):
        freed = Catalog(paths, lambda _: None).sweep([])
        return freed + (drop_partials(paths.partial, float("inf")) if partials else 0)


def _garbage(manager: ManagerClient | None, session: Session) -> Mapping[str, Any]:
    if manager is not None:
        with manager:
            return manager.get("/api/ft/gc")
    paths = session.config.paths
    orphans = [asdict(item) for item in Catalog(paths, lambda _: None).orphans([])]
    return {"orphans": orphans, "partials": [asdict(p) for p in list_partials(paths.partial)]}


def _explain(found: Mapping[str, Any], session: Session) -> None:
    orphans, partials = found.get("orphans") or [], found.get("partials") or []
    if session.out.as_json:
        told = {"orphans": orphans, "partials": partials}
        session.out.json_line(
            {kind: [_with_texts(item) for item in items] for kind, items in told.items()}
        )
        return
    if not orphans and not partials:
        session.out.note("everything in the store is needed; ft gc would remove nothing")
        return
    rows = [
        (
            f"{item['kind']} {Path(str(item['path'])).name.removeprefix('sha256-')[:12]}",
            human_bytes(item["bytes"]),
            f"{human_duration(item['age_s'])} ago",
            "removed" if item["due"] else "kept",
            str(item["reason"]),
        )
        for item in orphans
    ]
    session.out.data(table(HEADER, [*rows, *map(_partial_row, partials)]))
    due = sum(int(item["bytes"]) for item in orphans if item["due"])
    rest = sum(int(item["bytes"]) for item in partials)
    more = f"; ft gc --partials {human_bytes(rest)} more" if rest else ""
    session.out.note(f"ft gc would free {human_bytes(due)}{more}")


def _partial_row(item: Mapping[str, Any]) -> tuple[str, ...]:
    name = str(item["name"]).rpartition("/")[2] or "?"
    age_s = max(0.0, SYSTEM.wall() - item["modified_wall_s"])
    what, size = f"partial pull {name[:SHOWN_NAME]}", human_bytes(item["bytes"])
    reason = f"ft pull {name} goes on with it; a week without that removes it"
    return what, size, f"{human_duration(age_s)} ago", "kept", reason


def _with_texts(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in item.items()}
