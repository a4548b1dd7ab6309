"""`ft ps [PREFIX]`: loaded models."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes, until
from ftman.clock import SYSTEM

HEADER = ("NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print the table."""
    with session.manager() as manager:
        reply = manager.get("/api/ps")
    models = [m for m in reply.get("models") or [] if m["name"].startswith(args.prefix)]
    if session.out.as_json:
        session.out.json_line({"models": models})
    else:
        session.out.data(running_table(models, SYSTEM.wall()))
    return 0


def running_table(models: list[Mapping[str, Any]], now_wall_s: float) -> str:
    """The table of /api/ps entries."""
    rows = [
        (
            model["name"],
            model["digest"][:12],
            human_bytes(model["size"]),
            processor(model["size"], model.get("size_vram", 0)),
            str(model.get("context_length", "")),
            until(model["expires_at"], now_wall_s),
        )
        for model in models
    ]
    return table(HEADER, rows)


def processor(size: int, size_vram: int) -> str:
    """Where the weights are: "100% CPU", "34%/66% CPU/GPU"."""
    if size_vram == 0:
        return "100% CPU"
    if size_vram == size:
        return "100% GPU"
    if size_vram > size or size == 0:
        return "Unknown"
    cpu = round((size - size_vram) / size * 100)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"
