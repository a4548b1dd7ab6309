"""`ft rm MODEL...`: unload and remove; stops at the first error."""

from __future__ import annotations

import argparse

from ftman.cli.commands.stop import unload
from ftman.cli.session import Session
from ftman.errors import FtmanError, NotFoundError


def run(args: argparse.Namespace, session: Session) -> int:
    """Remove each model in turn."""
    with session.manager() as manager:
        for name in args.models:
            try:
                unload(manager, name)
            except NotFoundError:
                pass  # the removal below says it
            except FtmanError:
                session.out.warn(f"unable to stop model '{name}'")
            manager.delete("/api/delete", {"name": name, "model": name})
            if session.out.as_json:
                session.out.json_line({"deleted": name})
            else:
                session.out.data(f"deleted '{name}'")
    return 0
