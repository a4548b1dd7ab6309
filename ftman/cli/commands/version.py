"""`ft version`: the version of this program; the server is not asked."""

from __future__ import annotations

import argparse

from ftman import __version__
from ftman.cli.session import Session


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the version."""
    del args
    if session.out.as_json:
        session.out.json_line({"version": __version__})
    else:
        session.out.data(f"ft version is {__version__}")
    return 0
