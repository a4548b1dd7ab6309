"""`ft shutdown`: end the manager and its engines as SIGTERM does, and wait until it is gone."""

from __future__ import annotations

import argparse
import os

from ftman.cli.client import is_local
from ftman.cli.session import Session
from ftman.clock import SYSTEM, pause
from ftman.errors import FtmanError

LIMIT_S = 25.0
POLL_S = 0.05
SAY_AFTER_S = 3.0


def run(args: argparse.Namespace, session: Session) -> int:
    """Ask, then wait."""
    del args
    manager = session.running_manager()
    if manager is None:
        session.out.note("the ft manager is not running")
        return 0
    with manager:
        pid = int(manager.get("/api/ft/status")["pid"])
        manager.post("/api/ft/shutdown", {})
    begun, told = SYSTEM.monotonic(), False
    # It stops listening first and ends its engines then: gone is when the process is gone.
    while manager.answers() or (is_local(manager.url) and _is_there(pid)):
        waited = SYSTEM.monotonic() - begun
        if waited > SAY_AFTER_S and not told:
            told = True
            session.out.note("it ends when the answers under way are done, in 20 s at most ...")
        if waited > LIMIT_S:
            raise FtmanError(
                f"the ft manager at {manager.url} is still there after {LIMIT_S:.0f} s",
                hint=f"Its log may say why: {session.config.paths.logs / 'manager.log'}",
            )
        pause(POLL_S)
    session.out.note("the ft manager has ended")
    return 0


def _is_there(pid: int) -> bool:
    if os.name != "posix":  # there, signal 0 is Ctrl-C
        return False
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
