"""`ft cp SOURCE DESTINATION`: a second name for the same model."""

from __future__ import annotations

import argparse

from ftman.cli.session import Session


def run(args: argparse.Namespace, session: Session) -> int:
    """Copy a name."""
    pair = {"source": args.source, "destination": args.destination}
    with session.manager() as manager:
        manager.post("/api/copy", pair)
    if session.out.as_json:
        session.out.json_line({"copied": args.source, "to": args.destination})
    else:
        session.out.data(f"copied '{args.source}' to '{args.destination}'")
    return 0
