"""Logging set-up of the manager. What is logged, and when, is each module's own business."""

from __future__ import annotations

import contextvars
import logging
import sys
from typing import TextIO

FORMAT = "%(asctime)s %(levelname)s %(name)s%(request)s: %(message)s"
NAME = "manager.log"
LIMIT_BYTES = 10_000_000
KEPT = 3
"""Of the manager's log and of each engine's: how long one may be, and how many older are kept."""
NOISY = ("httpx", "httpcore", "uvicorn.access", "asyncio")

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")


class LineFormatter(logging.Formatter):
    """One record, one line that a terminal cannot be tricked by: control characters escaped.

    Tracebacks keep their line breaks, indented.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.request = f" [{request_id.get()}]" if request_id.get() else ""
        head, *rest = super().format(record).split("\n")
        traced = record.exc_info is not None or record.stack_info is not None
        if rest and not traced:
            head, rest = "\\n".join((head, *rest)), []
        return "\n    ".join(_escaped(line) for line in (head, *rest))


def configure(*, debug: bool = False, stream: TextIO | None = None) -> None:
    """Send every record of this process to `stream` (stderr); replaces earlier set-up."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(ch if ch.isprintable() else f"\\x{ord(ch):02x}" for ch in line)
