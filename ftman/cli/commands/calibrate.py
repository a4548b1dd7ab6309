"""`ft calibrate MODEL`: measure this machine for one model, again."""

from __future__ import annotations

import argparse

from ftman.cli.progress import follow
from ftman.cli.session import Session


def run(args: argparse.Namespace, session: Session) -> int:
    """Calibrate with progress."""
    with session.manager() as manager:
        body = {"model": args.model, "stream": True}
        follow(manager.stream("/api/ft/calibrate", body), session.out)
    return 0
