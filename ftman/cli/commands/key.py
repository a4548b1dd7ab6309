"""`ft key create|list|rm`: API keys of this machine's manager. Needs no manager; a running one
follows at once.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from datetime import datetime, timezone

from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.errors import UsageError
from ftman.folders import require_folders
from ftman.keys import USE, create_key, keys_path, read_keys, remove_key

HEADER = ("NAME", "RIGHTS", "CREATED")


def run(args: argparse.Namespace, session: Session) -> int:
    """Do what was asked."""
    if args.action == "list" and args.name:
        raise UsageError("ft key list takes no name")
    if args.action != "create" and args.rights:
        raise UsageError("--rights goes with ft key create")
    if args.action == "create":
        require_folders(session.config)
    path, out = keys_path(session.config.paths), session.out
    if args.action == "list":
        keys = read_keys(path)
        if out.as_json:
            kept = [{k: v for k, v in asdict(key).items() if k != "sha256"} for key in keys]
            out.json_line({"keys": kept})
        else:
            out.data(table(HEADER, [(k.name, k.rights, _day(k.created_wall_s)) for k in keys]))
        return 0
    if not args.name:
        raise UsageError(f"ft key {args.action} needs a name", hint=f"ft key {args.action} laptop")
    if args.action == "rm":
        remove_key(path, args.name)
        _tell(session, {"removed": args.name}, f"removed '{args.name}'")
        _warn_of_none_left(session, not read_keys(path))
        return 0
    rights = args.rights or USE
    secret = create_key(path, args.name, rights)
    _tell(session, {"name": args.name, "rights": rights, "key": secret}, secret)
    out.note(
        "This is the only time it is shown. Send it as `Authorization: Bearer KEY`; ft on another "
        "machine: FT_API_KEY=KEY.\nFrom now on every request needs a key; the ft command of this "
        "user needs none here."
    )
    return 0


def _tell(session: Session, value: dict[str, str], text: str) -> None:
    if session.out.as_json:
        session.out.json_line(value)
    else:
        session.out.data(text)


def _warn_of_none_left(session: Session, none: bool) -> None:
    if none:
        session.out.note("no key is left: on this machine everybody may do everything again")


def _day(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, timezone.utc).strftime("%Y-%m-%d") if wall_s else "-"
