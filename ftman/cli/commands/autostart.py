"""`ft autostart enable|disable|status|print`: start the manager at login. Needs no manager."""

from __future__ import annotations

import argparse

from ftman.autostart.base import Autostart
from ftman.autostart.choose import autostart_here
from ftman.cli.session import Session
from ftman.config import engine_environment
from ftman.folders import require_folders

_RUNNING = {True: "running", False: "not running", None: "running cannot be told"}


def run(args: argparse.Namespace, session: Session) -> int:
    """Do what was asked and say what became of it."""
    if args.action == "enable":  # a service that cannot start would say so to nobody
        require_folders(session.config)
    return act(autostart_here(session.config.paths, engine_environment()), args.action, session)


def act(autostart: Autostart, action: str, session: Session) -> int:
    """Perform one action.   Raises: AutostartError saying what to do instead."""
    out = session.out
    if action == "print":
        out.data(autostart.text(), end="")
        return 0
    if action != "status":
        told = autostart.enable() if action == "enable" else autostart.disable()
        if out.as_json:
            out.json_line({"action": action, "message": told})
        else:
            out.note(told)
        return 0
    status = autostart.status()
    if out.as_json:
        keys = ("enabled", "running", "path", "detail")
        out.json_line({key: getattr(status, key) for key in keys})
        return 0
    parts = ["enabled" if status.enabled else "not enabled", _RUNNING[status.running], status.path]
    out.data("   ".join((*parts, status.detail) if status.detail else parts))
    return 0
