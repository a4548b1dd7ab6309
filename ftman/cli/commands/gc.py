"""`ft gc`: remove blobs and weights that no model needs.

A running manager does it itself, since it alone knows what engines and jobs use; without one the
store is taken for that moment.
"""

from __future__ import annotations

import argparse

from ftman.catalog.catalog import Catalog
from ftman.catalog.lock import acquire_manager_lock
from ftman.cli.client import ManagerClient
from ftman.cli.manager import finder
from ftman.cli.session import Session
from ftman.cli.units import human_bytes
from ftman.errors import NotFoundError, UnsupportedError


def run(args: argparse.Namespace, session: Session) -> int:
    """Collect garbage and say how much that freed."""
    del args
    url = finder(session.config, session.out).running()
    freed = _by_manager(url) if url else _alone(session)
    if session.out.as_json:
        session.out.json_line({"freed": freed})
    else:
        session.out.data(f"freed {human_bytes(freed)}")
    return 0


def _by_manager(url: str) -> int:
    with ManagerClient(url) as manager:
        try:
            return int(manager.post("/api/ft/gc", {}, patient=True).get("freed", 0))
        except NotFoundError:
            raise UnsupportedError(
                "the running manager cannot collect garbage",
                hint="Stop it first, then: ft gc",
            ) from None


def _alone(session: Session) -> int:
    paths = session.config.paths
    with acquire_manager_lock(paths):
        return Catalog(paths, lambda _: None).sweep([])
