"""`ft shutdown`: end the manager and its engines as SIGTERM does, and wait until it is gone."""

from __future__ import annotations

import argparse

from ftman.cli.client import probe
from ftman.cli.session import Session
from ftman.clock import SYSTEM, pause
from ftman.errors import FtmanError

LIMIT_S = 25.0
POLL_S = 0.05


def run(args: argparse.Namespace, session: Session) -> int:
    """Ask, then wait."""
    del args
    manager = session.running_manager()
    if manager is None:
        session.out.note("the ft manager is not running")
        return 0
    with manager:
        manager.post("/api/ft/shutdown", {})
    limit = SYSTEM.monotonic() + LIMIT_S
    while probe(manager.url) == "ft":
        if SYSTEM.monotonic() > limit:
            raise FtmanError(
                f"the ft manager at {manager.url} still answers after {LIMIT_S:.0f} s",
                hint=f"Its log may say why: {session.config.paths.logs / 'manager.log'}",
            )
        pause(POLL_S)
    session.out.note("the ft manager has ended")
    return 0
