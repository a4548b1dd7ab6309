"""`ft search [TEXT...]`: the index of known models."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes, human_number

HEADER = ("NAME", "SIZE", "PARAMETERS", "LICENSE", "SUMMARY")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print what the index knows."""
    with session.manager() as manager:
        reply = manager.get("/api/ft/search", {"q": " ".join(args.text)})
    found = reply.get("models") or []
    if session.out.as_json:
        session.out.json_line({"models": found})
        return 0
    if found:
        session.out.data(table(HEADER, [_row(model) for model in found]))
    else:
        session.out.note("no known model matches; ft pull hf.co/<org>/<repo> takes others")
    return 0


def _row(model: Mapping[str, Any]) -> tuple[str, ...]:
    size = model.get("bytes") or 0
    total, active = int(model.get("total_params") or 0), int(model.get("active_params") or 0)
    count = human_number(total) if total else "-"
    if active and active != total:
        count += f" ({human_number(active)} active)"
    name, tag = str(model.get("name", "")), str(model.get("tag") or "")
    return (
        f"{name}:{tag}" if tag else name,
        human_bytes(size) if size else "-",
        count,
        str(model.get("license") or "-"),
        str(model.get("summary") or ""),
    )
