"""Where text goes: data to stdout, everything else to stderr; tables and errors."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from ftman.errors import FtmanError

GAP = "    "
DEFAULT_COLUMNS = 80


@dataclass(frozen=True)
class Output:
    """The two streams of one command and how talkative it is.

    as_json: data as JSON lines on stdout. quiet: only data and errors.
    """

    stdout: TextIO
    stderr: TextIO
    as_json: bool = False
    quiet: bool = False
    colour: bool = False

    def data(self, text: str, end: str = "\n") -> None:
        """What the command was asked for; on a terminal without the blanks that end table rows."""
        if end and self.stdout_is_tty:
            # They show nothing there, but would make a row that just fits wrap into an empty line.
            text = "\n".join(line.rstrip(" ") for line in text.split("\n"))
        print(text, end=end, file=self.stdout, flush=True)

    def json_line(self, value: Any) -> None:
        """One JSON object on one line of stdout."""
        self.data(json.dumps(value, ensure_ascii=False))

    def note(self, text: str) -> None:
        """Something a person should know; silent with --quiet."""
        if not self.quiet:
            print(safe(text), file=self.stderr, flush=True)

    def warn(self, text: str) -> None:
        """Something a person must know."""
        print(safe(f"warning: {text}"), file=self.stderr, flush=True)

    @property
    def stdout_is_tty(self) -> bool:
        """True if a person reads stdout as it comes."""
        return self.stdout.isatty()

    @property
    def stderr_is_tty(self) -> bool:
        """True if a line on stderr can be redrawn."""
        return self.stderr.isatty()

    def dim(self, text: str) -> str:
        """Grey on a terminal with colours, plain elsewhere."""
        return f"\x1b[90m{text}\x1b[0m" if self.colour and text else text


def make_output(*, as_json: bool, quiet: bool, no_colour: bool) -> Output:
    """Output on the process's own streams."""
    colour = sys.stdout.isatty() and not no_colour
    return Output(sys.stdout, sys.stderr, as_json=as_json, quiet=quiet, colour=colour)


def columns() -> int:
    """Width to lay text out for: COLUMNS, else the terminal's, else 80."""
    return max(20, shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Ollama's table: columns four apart, the last cell padded too (1 in the header, 4 in rows)."""
    rows = [[safe(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in (header, *rows)) for i in range(len(header))]
    lines = [_row(header, widths) + " "]
    lines += [_row(row, widths) + GAP for row in rows]
    return "\n".join(lines)


def error_text(error: FtmanError) -> str:
    """What happened and why, then what to do next."""
    lines = [f"error: {safe(error.message)}"]
    lines += [f"  {safe(line)}" for line in error.hint.splitlines()]
    return "\n".join(lines)


def safe(text: str) -> str:
    """Text from elsewhere that a terminal may be shown: control characters escaped, not lines."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() or ch == "\n" else f"\\x{ord(ch):02x}" for ch in text)


def without_controls(text: str) -> str:
    """A model's words without terminal commands; lines, tabs and emoji joiners stay."""
    if text.isprintable():
        return text
    return "".join(ch for ch in text if ch in "\n\t" or unicodedata.category(ch) != "Cc")


def error_value(error: FtmanError) -> Mapping[str, Any]:
    """The same as one JSON object."""
    return {"error": error.message, "code": error.code, "hint": error.hint}


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
