"""`ft push MODEL`: send a model whose source file was kept to the registry its name says."""

from __future__ import annotations

import argparse

from ftman.cli.progress import follow
from ftman.cli.session import Session
from ftman.errors import UsageError
from ftman.names import DEFAULT_HOST, is_valid_name, parse_name, printable


def run(args: argparse.Namespace, session: Session) -> int:
    """Push one model with progress."""
    if not is_valid_name(args.model):
        raise UsageError(f"invalid model name: {printable(args.model)}")
    with session.manager() as manager:
        body = {"model": args.model, "insecure": args.insecure, "stream": True}
        follow(manager.stream("/api/push", body), session.out)
    name = parse_name(args.model)
    if name.host != DEFAULT_HOST:
        session.out.note(f"others get it with: ft pull {name.short}")
    return 0
