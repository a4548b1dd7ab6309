"""`ft calibrate [MODEL]`: measure this machine now and show its rates."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ftman.cli.output import table
from ftman.cli.progress import follow
from ftman.cli.session import Session

HEADER = ("WHAT", "RATE", "MEASURED HOW")


def run(args: argparse.Namespace, session: Session) -> int:
    """Calibrate with progress, then print the table."""
    body = {"model": args.model, "stream": True}
    with session.manager() as manager:
        last = follow(manager.stream("/api/ft/calibrate", body), session.out)
    profile = last.get("profile")
    if isinstance(profile, dict) and not session.out.as_json:
        session.out.data(profile_table(profile))
    return 0


def profile_table(profile: Mapping[str, Any]) -> str:
    """Rates of one machine as people read them."""
    threads = f"{profile['threads']} threads, {profile['target']}"
    rows = [("memory, read", _rate(profile["read_bytes_per_s"]), f"streaming, {threads}")]
    rows += [
        (f"experts, {name}", _rate(value), f"CPU kernel on one token's experts, {threads}")
        for name, value in profile["expert_bytes_per_s"].items()
    ]
    if profile["disk_bytes_per_s"]:
        rows.append(("disk, read", _rate(profile["disk_bytes_per_s"]), "the model's own file"))
    rows.append(("link to a device", "none", "no accelerator here; an emulated one has no rate"))
    return table(HEADER, rows)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"
