"""`ft pull MODEL`: fetch, verify and convert; interrupted work is taken up by the same command."""

from __future__ import annotations

import argparse
from pathlib import Path

from ftman.cli.client import ManagerClient
from ftman.cli.progress import follow
from ftman.cli.session import Session
from ftman.errors import NotFoundError


def run(args: argparse.Namespace, session: Session) -> int:
    """Pull one model."""
    with session.manager() as manager:
        pull(manager, session, args.model, insecure=args.insecure)
    return 0


def pull(manager: ManagerClient, session: Session, name: str, *, insecure: bool) -> None:
    """Pull with progress.   Raises: FtmanError, KeyboardInterrupt (after saying how to resume)."""
    body = {"name": _place_or_name(name), "insecure": insecure, "stream": True}
    try:
        follow(manager.stream("/api/pull", body), session.out)
    except NotFoundError as error:
        if error.hint:
            raise
        raise NotFoundError(error.message, hint=f"See what there is: ft search {name}") from None
    except KeyboardInterrupt:
        session.out.note(f"stopped; what was fetched is kept. ft pull {name} resumes")
        raise


def _place_or_name(text: str) -> str:
    """A file or folder of this machine as file://..., everything else as it is."""
    if not text.startswith(("/", "./", "../", "~")):
        return text
    try:
        path = Path(text).expanduser().absolute()
        return path.resolve().as_uri() if path.exists() else text
    except (OSError, ValueError, RuntimeError):
        return text
