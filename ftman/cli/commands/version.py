"""`ft version`: the version of this program, and of a running manager where they differ.

The manager is not asked: what it wrote down about itself when it started is read.
"""

from __future__ import annotations

import argparse
import json

from ftman import __version__, files
from ftman.cli.session import Session

RECORD_LIMIT_BYTES = 4096


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the version; warn of a manager of another one."""
    del args
    manager = _manager_version(session)
    if session.out.as_json:
        value = {"version": __version__} | ({"manager": manager} if manager else {})
        session.out.json_line(value)
        return 0
    session.out.data(f"ft version is {__version__}")
    if manager and manager != __version__:
        session.out.warn(
            f"the running manager is version {manager}; ft shutdown ends it, and the next "
            "command starts this one"
        )
    return 0


def _manager_version(session: Session) -> str:
    path = session.config.paths.run / "manager.json"
    try:
        return str(json.loads(files.read_bytes(path, limit=RECORD_LIMIT_BYTES))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
