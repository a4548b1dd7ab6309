"""`ft memory MODEL --experts N | --kv N`: divide a loaded model's device memory anew, live."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from typing import Any

from ftman.cli.session import Session
from ftman.cli.units import human_bytes
from ftman.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)", re.IGNORECASE)
_FACTORS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def run(args: argparse.Namespace, session: Session) -> int:
    """Ask for the change and print what came of it."""
    body: dict[str, Any] = {"model": args.model}
    if args.experts is not None:
        if args.experts < 0:
            raise UsageError(f"--experts must be 0 or more, got {args.experts}")
        body["expert_slots"] = args.experts
    else:
        body["kv_bytes"] = parse_size(args.kv)
    with session.manager() as manager:
        state = manager.post("/api/ft/memory", body, patient=True)
    if session.out.as_json:
        session.out.json_line(state)
    else:
        session.out.data(memory_line(state))
    return 0


def memory_line(state: Mapping[str, Any]) -> str:
    """What is where now, in one line."""
    slots = int(state["expert_slots"])
    parts = (
        [f"experts {slots:,} slots ({human_bytes(slots * state['slot_bytes'])})"] if slots else []
    )
    parts.append(f"context {human_bytes(state['kv_bytes'])}")
    if state["device_bytes"]:
        free, whole = human_bytes(state["device_free_bytes"]), human_bytes(state["device_bytes"])
        parts.append(f"free {free} of {whole}")
    if state.get("preempted"):
        parts.append(f"{state['preempted']} requests made room and are computed again")
    return "   ".join(parts)


def parse_size(text: str) -> int:
    """Bytes of 512MB, 1.5G, 2GiB or a plain number.   Raises: UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--kv {text!r} is not a size; write bytes, or 512MB, 1.5GB, 2GiB")
    number, unit = match.groups()
    base = 1024 if "i" in unit.lower() else 1000
    return int(float(number) * base ** _FACTORS[unit[:1].upper().replace("B", "")])
