"""`ft bench MODEL --profile`: where the time of a step goes, operator by operator."""

from __future__ import annotations

import argparse

from ftman.cli.progress import follow
from ftman.cli.session import Session


def run(args: argparse.Namespace, session: Session) -> int:
    """Measure, then print the engine's table."""
    with session.manager() as manager:
        last = follow(manager.stream("/api/ft/bench", {"model": args.model}), session.out)
    if not session.out.as_json:
        session.out.data(str(last.get("text", "")))
    return 0
