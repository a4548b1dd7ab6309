"""Load a model and say so while it takes noticeably long."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ftman.cli.client import ManagerClient
from ftman.cli.output import columns
from ftman.cli.units import clock_span, human_bytes
from ftman.clock import SYSTEM
from ftman.errors import FtmanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ftman.cli.session import Session

SAY_AFTER_S = 0.3
REDRAW_S = 0.5


def load(manager: ManagerClient, session: Session, model: str, settings: Mapping[str, Any]) -> None:
    """Have `model` loaded; a line on stderr tells of it.   Raises: FtmanError."""
    body = {"model": model, "prompt": "", "stream": False, **settings}
    with _told(manager, session, model):
        manager.post("/api/generate", body, patient=True)


@contextmanager
def _told(manager: ManagerClient, session: Session, model: str) -> Iterator[None]:
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(done, manager, session, model), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(done: threading.Event, other: ManagerClient, session: Session, model: str) -> None:
    out = session.out
    if done.wait(SAY_AFTER_S) or out.quiet:
        return
    if not out.stderr_is_tty:
        out.note(f"loading {model} ...")
        _tell_plainly(done, other, session)
        return
    start = SYSTEM.monotonic()
    shown = 0
    with other.twin() as manager:
        while True:
            spent = clock_span(SYSTEM.monotonic() - start)
            text = f"loading {model} ... {spent}{_measured(manager) or _loaded(manager)}"[
                : columns() - 1
            ]
            print(f"\r{text.ljust(shown)}", end="", file=out.stderr, flush=True)
            shown = len(text)
            if done.wait(REDRAW_S):
                break
    print(f"\r{' ' * shown}\r", end="", file=out.stderr, flush=True)


def _tell_plainly(done: threading.Event, other: ManagerClient, session: Session) -> None:
    """Without a terminal: one line if the load begins with measuring the machine."""
    with other.twin() as manager:
        while not _measured(manager):
            if done.wait(REDRAW_S):
                return
    session.out.note("measuring this machine first, which is done once and takes some seconds ...")


def _measured(manager: ManagerClient) -> str:
    try:
        step = manager.get("/api/ft/status").get("measuring")
    except FtmanError:
        return ""
    if not isinstance(step, dict):
        return ""
    total = step.get("total")
    of_all = f", {step.get('completed')} of {total}" if total else ""
    return f"   measuring this machine first, once ({step.get('phase')}{of_all})"


def _loaded(manager: ManagerClient) -> str:
    try:
        models = manager.get("/api/ps").get("models") or []
    except FtmanError:
        return ""
    for entry in models:
        own = entry.get("ft") or {}
        if own.get("state") == "loading" and own.get("total_bytes"):
            done, total = own.get("loaded_bytes") or 0, own["total_bytes"]
            return f"   {human_bytes(done)}/{human_bytes(total)}"
    return ""
