"""`ft stop MODEL`: unload a model once it is idle."""

from __future__ import annotations

import argparse

from ftman.cli.client import ManagerClient
from ftman.cli.session import Session
from ftman.errors import NotFoundError


def run(args: argparse.Namespace, session: Session) -> int:
    """Unload one model; prints nothing. Starts no manager: where none runs, nothing is loaded."""
    manager = session.running_manager()
    if manager is None:
        session.out.note("the ft manager is not running, so no model is loaded")
        return 0
    with manager:
        try:
            unload(manager, args.model)
        except NotFoundError:
            raise NotFoundError(
                f'couldn\'t find model "{args.model}" to stop', hint="See what is loaded: ft ps"
            ) from None
    return 0


def unload(manager: ManagerClient, name: str) -> None:
    """Ask for an unload.   Raises: NotFoundError when no such model is installed."""
    manager.post("/api/generate", {"model": name, "prompt": "", "keep_alive": 0, "stream": False})
