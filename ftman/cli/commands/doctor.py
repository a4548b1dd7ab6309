"""`ft doctor [--bundle FILE]`: how this machine, the store, the manager and the settings are.

Starts no manager. Exit code 1 when something does not work.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ftman import __version__
from ftman.autostart.base import AutostartError
from ftman.autostart.choose import autostart_here
from ftman.cli.commands.settings import differences
from ftman.cli.output import safe
from ftman.cli.session import Session
from ftman.config import engine_environment, settings_of
from ftman.doctor.bundle import write_bundle
from ftman.doctor.checks import PROBLEM, Finding, Patient, examine
from ftman.errors import FtmanError

NAME_CELLS = 12
_MARKS = {"ok": " ", "note": "*", "problem": "!"}


def run(args: argparse.Namespace, session: Session) -> int:
    """Look at everything and say it; with --bundle write it down for others."""
    bundle = Path(args.bundle).expanduser() if args.bundle else None
    findings, patient = look(session)
    bad = any(finding.state == PROBLEM for finding in findings)
    if session.out.as_json:
        session.out.json_line({"findings": [asdict(item) for item in findings], "ok": not bad})
    else:
        session.out.data("\n".join(text_of(finding) for finding in findings))
    if bundle is not None:
        _bundle(bundle, findings, patient, session)
    return 1 if bad else 0


def look(session: Session) -> tuple[list[Finding], Patient]:
    """What there is to say about this machine and its manager."""
    status, url, differing = _manager(session)
    config, environ = session.config, engine_environment()
    patient = Patient(config, environ, status, url, differing, _autostart(session, environ))
    return examine(patient), patient


def text_of(finding: Finding) -> str:
    """One finding: its name, what is so, and below it what to do."""
    head = f"{_MARKS[finding.state]} {finding.name:<{NAME_CELLS}}{safe(finding.text)}"
    indent = " " * (NAME_CELLS + 2)
    return "\n".join([head, *(f"{indent}-> {safe(hint)}" for hint in finding.hints)])


def _manager(session: Session) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    try:
        manager = session.running_manager()
        if manager is None:
            return {}, "", ()
        with manager:
            status = manager.get("/api/ft/status")
    except FtmanError as error:
        return {}, "", (error.message,)
    lines = differences(settings_of(session.config), status.get("effective") or {})
    return status, manager.url, tuple(lines)


def _autostart(session: Session, environ: dict[str, str]) -> str:
    try:
        state = autostart_here(session.config.paths, environ).status()
    except (AutostartError, OSError):
        return ""
    return "starts at login" if state.enabled else "not started at login: ft autostart enable"


def _bundle(path: Path, findings: list[Finding], patient: Patient, session: Session) -> None:
    told = {
        "version": __version__,
        "findings": [asdict(item) for item in findings],
        "settings": settings_of(patient.config),
        "manager": dict(patient.status),
    }
    try:
        names = write_bundle(path, told, session.config.paths.logs, patient.environ)
    except OSError as error:
        raise FtmanError(
            f"{path} cannot be written: {error.strerror or error}", hint="Name another file."
        ) from None
    session.out.note(
        f"wrote {path}: {', '.join(names)}\nKeys, tokens and names were taken out; look at it "
        f"before you send it: tar -xzOf {path} | less"
    )
