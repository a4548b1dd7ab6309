"""`ft status`: is the manager running, where, since when. Starts nothing; exit code 1 if not."""

from __future__ import annotations

import argparse

from ftman.cli.session import Session


def run(args: argparse.Namespace, session: Session) -> int:
    """Print one line."""
    del args
    manager = session.running_manager()
    if manager is None:
        if session.out.as_json:
            session.out.json_line({"running": False})
        session.out.note(f"the ft manager is not running (store: {session.config.paths.models})")
        return 1
    with manager:
        state = manager.get("/api/ft/status")
    if session.out.as_json:
        session.out.json_line({"running": True, "url": manager.url, **state})
    elif not session.out.quiet:
        line = f"ft {state['version']} at {manager.url}, process {state['pid']}"
        prepared = state.get("prepared_pid")  # an older manager has none
        session.out.data(f"{line}; engine prepared, process {prepared}" if prepared else line)
    return 0
