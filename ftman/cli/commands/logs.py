"""`ft logs [MODEL] [-f]`: the manager's log or that of a model's engine. Needs no manager here;

one on another machine is asked for its logs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from ftman.cli.client import is_local
from ftman.cli.output import safe, table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes
from ftman.clock import pause
from ftman.errors import NotFoundError, UsageError
from ftman.names import printable
from ftman.service.logs import LogFile, LogTail, list_logs
from ftman.supervisor.rundir import log_stem

POLL_S = 0.3
HEADER = ("LOG", "SIZE", "LAST LINE")
MANAGER = "manager"


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the last lines; with -f wait for more until interrupted."""
    if args.lines < 0:
        raise UsageError(f"--lines must be 0 or more, got {args.lines}", hint="ft logs -n 50")
    if not is_local(session.config.url):
        return _remote(args, session)
    folder = session.config.paths.logs
    logs = list_logs(folder)
    if args.list:
        _show_list(logs, session)
        return 0
    name = choose_log(args.name, [log.name for log in logs], folder)
    for text in _pieces(LogTail(folder, name, args.lines), follow=args.follow):
        session.out.data(safe_lines(text), end="")
    return 0


def choose_log(asked: str, names: list[str], folder: Path) -> str:
    """The log that a name means: its own, or a model's with or without its tag.

    Raises: NotFoundError naming what there is, UsageError for several.
    """
    bare = asked.removesuffix(".log")
    wanted = (bare, log_stem(bare), log_stem(f"{bare}:latest"))
    found = next((name for name in wanted if name in names), None)
    if found is None and ":" not in bare:
        tagged = [name for name in names if name.startswith(f"{log_stem(bare)}-")]
        found = tagged[0] if len(tagged) == 1 else None
    if found is not None:
        return found
    if names and bare != MANAGER:
        there = f"There are: {', '.join(sorted(names))}"
        raise NotFoundError(f"no log named {printable(asked)!r}", hint=there)
    raise NotFoundError(
        f"there is no log in {folder} yet" if not names else f"there is no manager.log in {folder}",
        hint="ft writes one when it starts the manager in the background; in the foreground it "
        "writes to\nits terminal, under systemd to the journal: journalctl --user -u ft",
    )


def safe_lines(data: bytes) -> str:
    """Log text that a terminal may be shown: tabs and lines stay, other controls are escaped."""
    text = data.decode("utf-8", "replace")
    return "\t".join(safe(part) for part in text.split("\t"))


def _pieces(tail: LogTail, *, follow: bool) -> Iterator[bytes]:
    yield tail.read()
    while follow:
        data = tail.read()
        if data:
            yield data
        else:
            pause(POLL_S)


def _show_list(logs: list[LogFile], session: Session) -> None:
    if session.out.as_json:
        for log in logs:
            session.out.json_line({"name": log.name, "size_bytes": log.size_bytes})
        return
    rows = [
        (
            log.name,
            human_bytes(log.size_bytes),
            datetime.fromtimestamp(log.modified_wall_s).strftime("%Y-%m-%d %H:%M:%S"),
        )
        for log in logs
    ]
    session.out.data(table(HEADER, rows))


def _remote(args: argparse.Namespace, session: Session) -> int:
    with session.manager() as manager:
        logs = [str(log["name"]) for log in manager.get("/api/ft/logs").get("logs") or ()]
        if args.list:
            session.out.data("\n".join(logs))
            return 0
        name = choose_log(args.name, logs, Path("its log folder"))
        query = {"lines": str(max(0, args.lines)), "follow": "1" if args.follow else "0"}
        for text in manager.text_lines(f"/api/ft/logs/{name}", query):
            session.out.data(safe_lines(text.encode()), end="")
    return 0
