"""`ft list [PREFIX]`: installed models, newest first."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes, human_time
from ftman.clock import SYSTEM

HEADER = ("NAME", "ID", "SIZE", "MODIFIED")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the table."""
    with session.manager() as manager:
        reply = manager.get("/api/tags")
    prefix = args.prefix.lower()
    models = [m for m in reply.get("models") or [] if m["name"].lower().startswith(prefix)]
    if session.out.as_json:
        session.out.json_line({"models": models})
        return 0
    session.out.data(models_table(models, SYSTEM.wall()))
    for model in models:
        damaged = (model.get("ft") or {}).get("damaged")
        if damaged:
            session.out.warn(f"{model['name']} is damaged: {damaged}; ft pull it again")
    return 0


def models_table(models: list[Mapping[str, Any]], now_wall_s: float) -> str:
    """The table of /api/tags entries."""
    rows = [
        (
            model["name"],
            model["digest"][:12],
            "-" if model.get("remote_model") else human_bytes(model["size"]),
            human_time(model["modified_at"], now_wall_s),
        )
        for model in models
    ]
    return table(HEADER, rows)
