"""`ft jobs [list|pause|resume|cancel] [ID|MODEL]`: pulls and other long work of the manager."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ftman.cli.output import table
from ftman.cli.session import Session
from ftman.cli.units import human_bytes, human_duration
from ftman.clock import SYSTEM
from ftman.errors import NotFoundError, UsageError

HEADER = ("ID", "NAME", "STATE", "PHASE", "DONE", "UPDATED", "NOTE")
UNFINISHED = ("running", "paused", "interrupted", "failed")
_STATES = {"pause": ("running",), "cancel": ("running",), "resume": (*UNFINISHED[1:], "cancelled")}
_DONE = {"pause": "paused", "cancel": "cancelled", "resume": "goes on in the background"}
SHOWN_NOTE = 60


def run(args: argparse.Namespace, session: Session) -> int:
    """List jobs, or tell one what to do."""
    if args.action == "list" and args.job:
        raise UsageError("ft jobs list takes no name", hint="ft jobs pause NAME")
    if args.action != "list" and not args.job:
        raise UsageError(f"ft jobs {args.action} needs a job", hint="Its id or model: ft jobs")
    with session.manager() as manager:
        jobs = manager.get("/api/ft/jobs").get("jobs") or []
        if args.action == "list":
            shown = [job for job in jobs if args.all or job["state"] in UNFINISHED]
            _show(shown, session)
            return 0
        job = _chosen(jobs, args.job, _STATES[args.action])
        path = f"/api/ft/jobs/{job['id']}"
        if args.action == "cancel":
            manager.delete(path, {})
        else:
            manager.post(f"{path}/{args.action}", {})
    if session.out.as_json:
        session.out.json_line({"id": job["id"], "name": job["name"], "action": args.action})
    else:
        session.out.data(f"{job['name']} {_DONE[args.action]}")
    return 0


def _chosen(
    jobs: Sequence[Mapping[str, Any]], wanted: str, states: Sequence[str]
) -> Mapping[str, Any]:
    """The job whose id begins so, or that pulls this model.   Raises: NotFoundError, UsageError."""
    able = [job for job in jobs if job["state"] in states]
    found = [job for job in able if job["id"].startswith(wanted)] if len(wanted) > 3 else []
    found = found or [job for job in able if wanted in (job["name"], job["name"].split(":")[0])]
    if not found:
        raise NotFoundError(
            f"no job {wanted[:60]!r} that is {' or '.join(states)}", hint="See: ft jobs --all"
        )
    if len(found) > 1:
        names = ", ".join(f"{job['id']} ({job['name']})" for job in found)
        raise UsageError(f"{wanted[:60]!r} means several jobs: {names}", hint="Name one by its id.")
    return found[0]


def _show(jobs: Sequence[Mapping[str, Any]], session: Session) -> None:
    if session.out.as_json:
        session.out.json_line({"jobs": list(jobs)})
        return
    now = SYSTEM.wall()
    rows = [
        (
            str(job["id"]),
            str(job["name"]),
            str(job["state"]),
            str(job["phase"] or "-"),
            f"{human_bytes(job['completed'])}/{human_bytes(job['total'])}" if job["total"] else "-",
            f"{human_duration(max(0.0, now - job['updated_wall_s']))} ago",
            textwrap.shorten(str(job["error"]), SHOWN_NOTE, placeholder=" ..."),
        )
        for job in jobs
    ]
    session.out.data(table(HEADER, rows))
    if any(job["state"] in UNFINISHED[1:] for job in jobs):
        session.out.note(
            "ft jobs resume ID goes on with a pull; ft gc --partials drops what they left"
        )
