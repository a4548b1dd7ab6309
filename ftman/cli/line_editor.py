"""Reading lines on a terminal: editing and history through readline where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ftman import files

try:
    import readline as _readline
except ImportError:  # Windows: plain lines, no history
    _readline = None  # type: ignore[assignment]

EDIT = "/edit"
HISTORY_ITEMS = 1000
HISTORY_LIMIT_BYTES = 8 << 20


class LineEditor:
    """Line input with a history that outlives the session. Pasted line breaks do not submit.

    keep_history False: nothing is read from it or written to it.
    """

    def __init__(self, history: Path, *, keep_history: bool = True):
        self._path = history
        self._record = self._kept = keep_history
        self._module: Any = _readline
        if self._module is not None:
            self._module.parse_and_bind("set enable-bracketed-paste on")
            # Ctrl-J: a new line in the message. Ctrl-G: what stands in the line goes to /edit.
            self._module.parse_and_bind(r'"\C-j": "\C-v\C-j"')
            self._module.parse_and_bind(rf'"\C-g": "\C-a{EDIT} \C-m"')
            self._module.set_auto_history(False)
            self._module.clear_history()
            for item in _read_history(history) if keep_history else ():
                self._module.add_history(item)

    def read(self, prompt: str) -> str:
        """One line, or a pasted block.   Raises: EOFError (Ctrl-D), KeyboardInterrupt (Ctrl-C)."""
        line = input(prompt)
        if not line.startswith(EDIT):
            self.remember(line)
        return line

    def remember(self, text: str) -> None:
        """Put a text into the history, as if it had been typed."""
        if self._record and text.strip() and self._module is not None:
            self._module.add_history(text)

    def record(self, on: bool) -> None:
        """Whether what is typed from now on goes into the history."""
        self._record = on

    def save(self) -> None:
        """Write the history; losing it is no error worth ending a session with."""
        if self._module is None or not self._kept:
            return
        count = self._module.get_current_history_length()
        first = max(1, count - HISTORY_ITEMS + 1)
        items = [self._module.get_history_item(i) for i in range(first, count + 1)]
        data = "".join(json.dumps(item) + "\n" for item in items if item)
        try:
            files.write_atomic(self._path, data.encode())
        except OSError:
            return


def _read_history(path: Path) -> list[str]:
    try:
        lines = files.read_bytes(path, limit=HISTORY_LIMIT_BYTES).splitlines()
        items = [json.loads(line) for line in lines[-HISTORY_ITEMS:]]
    except (OSError, ValueError):
        return []
    return [item for item in items if isinstance(item, str)]
