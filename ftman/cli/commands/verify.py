"""`ft verify [MODEL] [--repair]`: read what is installed, name what is damaged, mend it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ftman.cli.progress import follow
from ftman.cli.session import Session

SHOWN = 8


def run(args: argparse.Namespace, session: Session) -> int:
    """Verify one model or all; status 1 while damage is left."""
    body = {"model": args.model, "repair": args.repair}
    with session.manager() as manager:
        last = follow(manager.stream("/api/ft/verify", body), session.out)
    models = last.get("models") or []
    if not session.out.as_json:
        if not models:
            session.out.note("nothing is installed")
        for model in models:
            session.out.data("\n".join(_lines(model, repaired=args.repair)))
    return 1 if any(model.get("left") for model in models) else 0


def _lines(model: Mapping[str, Any], *, repaired: bool) -> list[str]:
    name, damage, left = str(model.get("name")), model.get("damage"), model.get("left")
    if not damage:
        return [f"{name}   whole"]
    if not left:
        return [f"{name}   repaired: {model.get('done')}", *_stretches(damage)]
    lines = [f"{name}   DAMAGED in {len(left)} place{'s' if len(left) > 1 else ''}"]
    lines += _stretches(left)
    if model.get("done"):
        lines.append(f"  tried: {model['done']}")
    remedy = f"ft rm {name}, then get it anew" if repaired else f"ft verify {name} --repair"
    return [*lines, f"  -> {remedy}"]


def _stretches(damage: Sequence[Mapping[str, Any]]) -> list[str]:
    shown = [
        f"  {item.get('file')} {item.get('start')}-{item.get('end')}: {item.get('reason')}"
        for item in damage[:SHOWN]
    ]
    more = len(damage) - SHOWN
    return [*shown, f"  and {more} more"] if more > 0 else shown
