"""`ft search [TEXT...]`: the index of known models."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ftman.cli.client import ManagerClient
from ftman.cli.output import GAP, Output, columns, table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes, human_number
from ftman.names import near_names

HEADER = ("NAME", "SIZE", "PARAMETERS", "LICENSE", "SUMMARY")


def run(args: argparse.Namespace, session: Session) -> int:
    """Print what the index knows."""
    with session.manager() as manager:
        found = _asked(manager, " ".join(args.text))
        near = "" if found else _near(manager, "-".join(args.text))
    if session.out.as_json:
        session.out.json_line({"models": found})
        return 0
    if found:
        session.out.data(shown([_row(model) for model in found], session.out))
    else:
        session.out.note(
            f"no known model matches{near or ';'} ft pull hf.co/<org>/<repo> takes others"
        )
    return 0


def _asked(manager: ManagerClient, text: str) -> list[Mapping[str, Any]]:
    return list(manager.get("/api/ft/search", {"q": text}).get("models") or ())


def _near(manager: ManagerClient, text: str) -> str:
    close = near_names(text, (str(model["name"]) for model in _asked(manager, "")))
    return f"; did you mean {' or '.join(close)}?" if close else ""


def shown(rows: Sequence[tuple[str, ...]], out: Output) -> str:
    """A table; on a terminal too narrow for it, two lines for each model."""
    whole = table(HEADER, rows)
    if not out.stdout_is_tty or max(map(len, whole.split("\n"))) < columns() + len(GAP):
        return whole
    return "\n".join(
        f"{name}   {', '.join(cell for cell in (count, licence, size) if cell != '-')}\n  {summary}"
        for name, size, count, licence, summary in rows
    )


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
