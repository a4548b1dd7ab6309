"""`ft show MODEL --engine`: how the engine of a loaded model computes and keeps things."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftman.cli.commands.ps import entries_named
from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes
from ftman.errors import NotFoundError


def run(model: str, session: Session) -> int:
    """Print what the engine says of itself.   Raises: NotFoundError when it is not loaded."""
    with session.manager() as manager:
        models = manager.get("/api/ft/experts").get("models") or []
    entries = entries_named(models, model)
    if not entries:
        raise NotFoundError(
            f"model {model} is not loaded", hint=f"Load it first: ft run {model}", code="not_loaded"
        )
    if session.out.as_json:
        session.out.json_line(entries[0])
    else:
        session.out.data(engine_text(entries[0]))
    return 0


def engine_text(entry: Mapping[str, Any]) -> str:
    """A line for each fact that is known, then the engine's notes."""
    facts = entry.get("kernels") or {}
    kept = [entry.get("kv_format") or "", human_bytes(entry["kv_bytes"])]
    rows = [
        ("device", entry.get("device") or ""),
        ("compute", entry.get("compute") or ""),
        ("weights", human_bytes(entry.get("weights_bytes") or 0)),
        ("KV cache", " ".join(filter(None, kept))),
        *((f"kernels: {name}", str(value)) for name, value in sorted(facts.items())),
        *(("note", str(note)) for note in entry.get("notes") or ()),
    ]
    text = table(("ENGINE", "VALUE"), [row for row in rows if row[1]])
    return "\n".join(line.rstrip() for line in text.splitlines())
