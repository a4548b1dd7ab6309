"""`ft logs [NAME]`: the manager's log, or another one in the log folder. Needs no manager."""

from __future__ import annotations

import argparse
from pathlib import Path

from ftman import files
from ftman.cli.session import Session
from ftman.clock import pause
from ftman.errors import NotFoundError
from ftman.names import printable

POLL_S = 0.3
TAIL_BYTES = 4 << 20


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the last lines; with -f wait for more until interrupted."""
    path = _log_path(session.config.paths.logs, args.name)
    with files.open_read(path) as reader:
        size = reader.seek(0, 2)
        reader.seek(max(0, size - TAIL_BYTES))
        lines = reader.read().decode("utf-8", "replace").splitlines()
        for line in lines[-args.lines :] if args.lines > 0 else []:
            session.out.data(line)
        while args.follow:
            more = reader.read()
            if more:
                session.out.data(more.decode("utf-8", "replace"), end="")
            else:
                pause(POLL_S)
    return 0


def _log_path(folder: Path, name: str) -> Path:
    names = sorted(p.name for p in folder.glob("*.log")) if folder.is_dir() else []
    wanted = name if name.endswith(".log") else f"{name}.log"
    if wanted in names:
        return folder / wanted
    if not names:
        raise NotFoundError(
            f"there is no log in {folder} yet",
            hint="ft writes one when it starts the manager in the background.",
        )
    raise NotFoundError(f"no log named {printable(name)!r}", hint=f"There are: {', '.join(names)}")
